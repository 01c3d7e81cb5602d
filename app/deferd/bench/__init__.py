"""`deferd bench`: measures a running deployment over HTTP for sizing.

`command` reads the `options`, checks the `deployment`, lets `processes` run the `steps` of the three `loads`, and shows
the `figures` in a `report`. A load-generating process checks each job in a `ledger` and sends single calls over a
`connection`.
"""

from __future__ import annotations
