"""The direct paths: single calls in their usual shape, without a task for each.

`deferd.api.dispatch.RequestHandler.handle` and the routes are the specification: a direct path returns the same bytes,
counts the same metrics and has the same effects. It is for one verb each, and takes only requests that it understands
completely. At any doubt, errors in the request included, `begin` returns None before it has any effect, and the
request goes the general way. From then on the call is carried by callbacks: of the group commit, or of the dispatcher.
"""
