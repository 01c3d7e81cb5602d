"""`deferd bench`: measures a running deployment through HTTP, so that its users can size it.

`command` runs it: it reads the `options`, looks at the `deployment`, lets `processes` carry out the `steps` of the
three `loads`, and shows the `figures` in a `report`. A process that generates load checks each job it handles in a
`ledger`, and makes single calls over `connection`.
"""

from __future__ import annotations
