"""`deferd bench`: measures a running deployment over HTTP for sizing.

`command` reads the `options`, lets `processes` run the `steps` of the three `loads`, and shows the `figures`.
`plan_report` shows the `plan` that is computed from `costs`.
"""

from __future__ import annotations
