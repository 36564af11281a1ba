"""The dashboard: pages made on the server, their data as JSON, one process, no other host.

- `app`, `options`   puts it together, as it was told to
- `house`      what every page needs: the store, the templates
- `security`   headers, the token, who may write; `refusals` is the book of who may not
- `pages/`     one file per page; `blocks` and `marks` are parts of them
- `api/`       the same data under /api/v1; `described` is its OpenAPI document
- `body`, `moments`, `faults`   what a request holds, and what is wrong with it
- `door`       a short way in for deliveries of nodes
- `folding`, `settling`, `steward`   runs into the store, while pages are served
- `connections`   how many there may be, and how long each may take
- `worker`, `tasks`   child processes with limits, for what takes long or reads text of others
- `cache`, `kept`, `kept_pages`, `warm`   what takes long is made once, or before somebody asks
"""
