"""The dashboard: pages made on the server, their data as JSON, one process, no other host.

- `app`       puts it together
- `house`     what every page needs: the store, the templates
- `security`  headers, the token, who may write
- `pages/`    one file per page
- `api/`      the same data under /api/v1
"""
