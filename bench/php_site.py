"""The site behind `protection`, `arena` and `together`: nginx and PHP-FPM on one core.

Its pages burn CPU time (crates/evenkeel/tests/journey/burn.php). Only the standard library is used.
"""

import os
import shutil

import contest
from contest import LOAD_CORE, ROOT, free_port


class Site:
    """nginx and PHP-FPM, all on one core. `pages` has a query of burn.php for each path; `/status`
    tells the requests that are there. `host`: the address that nginx listens on."""

    def __init__(self, bench, workers, pages, host="127.0.0.1"):
        self.port, php = free_port(), free_port()
        shutil.copy(f"{ROOT}/crates/evenkeel/tests/journey/burn.php", f"{bench.folder}/burn.php")
        user = "user = www-data\ngroup = www-data\n" if os.geteuid() == 0 else ""
        conf = bench.file("fpm.conf", f"""\
[global]
error_log = {bench.folder}/fpm-error.log
daemonize = no
[site]
{user}listen = 127.0.0.1:{php}
listen.backlog = 4096
pm = static
pm.max_children = {workers}
""")
        command = [contest.php_fpm(), "-n", "-F", "-y", conf]
        self.php = bench.start("php-fpm", command, php, LOAD_CORE)
        page = lambda path, query: f"""\
    location = {path} {{
      fastcgi_pass 127.0.0.1:{php};
      fastcgi_read_timeout 300s;
      fastcgi_param SCRIPT_FILENAME {bench.folder}/burn.php;
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param QUERY_STRING {query};
    }}
"""
        self.nginx = bench.nginx("site", self.port, f"""\
  server {{
    listen {host}:{self.port} backlog=4096;
    location = /status {{ stub_status; }}
{"".join(page(*pair) for pair in pages.items())}  }}
""", LOAD_CORE, host)

    def cpu_seconds(self):
        return self.php.cpu_seconds() + self.nginx.cpu_seconds()


def left_over(core=LOAD_CORE):
    """Seconds that a core, else the site's, has had nothing to do."""
    line = next(l for l in open("/proc/stat") if l.startswith(f"cpu{core} "))
    return int(line.split()[4]) / contest.TICK


def used_by_others():
    """CPU-seconds of all programs but those of this benchmark."""
    busy = sum(map(int, open("/proc/stat").readline().split()[1:4])) / contest.TICK
    return busy - contest.cpu_seconds(contest.family(os.getpid()))
