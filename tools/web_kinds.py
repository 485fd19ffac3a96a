"""The kinds of web servers that the tests of families start: configurations, programs, reloads."""

import signal
from dataclasses import dataclass, field

WORKERS = 4
PAGE = "".join(f"line {i} of a page\n" for i in range(400))

# The place for the rest of the server's block is %s.
NGINX = """\
daemon {daemon};
worker_processes {workers};
pid {folder}/pid;
error_log {folder}/error.log notice;
user {user};
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  gzip on;
  gzip_min_length 100;
  gzip_types text/plain;
  server {{
    listen unix:{folder}/socket;
    %s
  }}
}}
"""
PAGES = """\
root {folder};
    types {{ text/plain txt; }}
    rewrite ^/page/(.*)$ /$1.txt;"""
FAST_CGI = """\
location / {{
      fastcgi_pass unix:{upstream}/socket;
      fastcgi_param SCRIPT_FILENAME {upstream}/hello.php;
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param QUERY_STRING $query_string;
    }}"""
APACHE = """\
ServerRoot {folder}
ServerName test
PidFile {folder}/pid
ErrorLog {folder}/error.log
Listen 127.0.0.1:{port}
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
LoadModule filter_module /usr/lib/apache2/modules/mod_filter.so
LoadModule deflate_module /usr/lib/apache2/modules/mod_deflate.so
LoadModule rewrite_module /usr/lib/apache2/modules/mod_rewrite.so
StartServers {workers}
MinSpareServers 1
MaxSpareServers {workers}
MaxRequestWorkers {workers}
TypesConfig /etc/mime.types
DocumentRoot {folder}
<Directory {folder}>
  Require all granted
</Directory>
SetOutputFilter DEFLATE
RewriteEngine on
RewriteRule ^/page/(.*)$ /$1.txt
"""
PHP = """\
[global]
error_log = {folder}/error.log
daemonize = no
process_control_timeout = 30s
[www]
listen = {folder}/socket
listen.backlog = 512
pm = static
pm.max_children = {workers}
"""
PHP_SCRIPT = """\
<?php
$words = [];
for ($i = 0; $i < 300; $i++) { $words["key$i"] = md5("word $i") . strrev((string)$i); }
ksort($words);
echo strlen(implode(",", $words)), "\\n", preg_match_all('/[a-f]{2}/', implode(" ", $words)), "\\n";
"""
# The answers are haproxy's own. With a server behind it, workers of Debian's haproxy 2.6.12 sometimes crash at their
# end after a reload, without whet as well.
HAPROXY = """\
global
  maxconn 1000
  nbthread 2
defaults
  mode http
  timeout client 30s
  timeout server 30s
  timeout connect 5s
frontend front
  bind 127.0.0.1:{port}
  http-request set-header X-Words %[path,regsub(^/page/,,),upper,sha1,hex]
  http-request deny if {{ path -m reg ^/private/[a-z]+/[0-9]+$ }}
  http-request deny if {{ req.hdr(User-Agent) -m reg (bot|spider|crawler) }}
  http-response set-header X-Words %[rand,mod(10)]
  http-request return status 200 content-type text/plain file {folder}/hello.txt
"""
GUNICORN = """\
bind = "unix:{folder}/socket"
workers = {workers}
graceful_timeout = 30
chdir = "{folder}"
wsgi_app = "app:serve"
errorlog = "{folder}/error.log"
"""
GUNICORN_APP = """\
import hashlib, json, re


def serve(environ, start_response):
    words = sorted(hashlib.md5(b"word %d" % i).hexdigest() for i in range(300))
    found = re.findall("[a-f]{2}", " ".join(words))
    body = json.dumps({"words": words, "pairs": len(found), "path": environ["PATH_INFO"]}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
"""
# If puma queues requests, a worker that ends closes connections whose request has not come yet: clients fail at a
# reload, without whet as well.
PUMA = """\
bind "unix://{folder}/socket?backlog=512"
environment "production"
rackup "{folder}/config.ru"
workers {workers}
threads 1, 1
preload_app! false
queue_requests false
stdout_redirect "{folder}/output", "{folder}/error.log", true
"""
PUMA_APP = """\
require "digest"
require "json"
run(lambda do |env|
  words = (0...300).map { |i| Digest::MD5.hexdigest("word #{i}") }.sort
  body = JSON.generate({ words: words, pairs: words.join(" ").scan(/[a-f]{2}/).size, path: env["PATH_INFO"] })
  [200, { "Content-Type" => "application/json", "Content-Length" => body.bytesize.to_s }, [body]]
end)
"""


@dataclass
class Kind:
    """How one kind of server is started and reloaded. `package` is Debian's name. `keeps` says whether the parent
    of the family lives on after a reload. `by_worker`: the worker is a family of its own, because its master
    executes itself anew after the fork. `detached`: the parent is no child of the program that started it, and has
    its id in the file `pid`; the reload is a binary upgrade. `behind`: requests go by HTTP to a server of this kind,
    which passes them on. `files` are further files in the server's folder."""

    program: str
    package: str
    words: list[str]
    config: str
    reload: signal.Signals
    keeps: bool = True
    by_port: bool = False
    by_worker: bool = False
    detached: bool = False
    behind: str | None = None
    files: dict[str, str] = field(default_factory=dict)


NGINX_WORDS = ["-c", "{config}", "-e", "{folder}/error.log"]
KINDS = {
    "nginx": Kind("nginx", "nginx-light", NGINX_WORDS, NGINX % PAGES, signal.SIGHUP),
    "nginx-upgrade": Kind(
        "nginx", "nginx-light", NGINX_WORDS, NGINX % PAGES, signal.SIGUSR2, keeps=False, detached=True
    ),
    "apache": Kind("apache2", "apache2-bin", ["-f", "{config}", "-DFOREGROUND"], APACHE, signal.SIGUSR1, by_port=True),
    # The master executes itself anew.
    "php-fpm": Kind(
        "php-fpm8.2", "php8.2-fpm", ["-n", "-R", "-y", "{config}", "-F"], PHP, signal.SIGUSR2, keeps=False,
        behind="nginx before php-fpm", files={"hello.php": PHP_SCRIPT},
    ),
    "haproxy": Kind(
        "haproxy", "haproxy", ["-W", "-f", "{config}"], HAPROXY, signal.SIGUSR2, keeps=False, by_port=True,
        by_worker=True,
    ),
    "gunicorn": Kind(
        "gunicorn", "gunicorn", ["-c", "{config}"], GUNICORN, signal.SIGHUP, files={"app.py": GUNICORN_APP}
    ),
    # Workers are replaced one after the other.
    "puma": Kind("puma", "puma", ["-C", "{config}"], PUMA, signal.SIGUSR1, files={"config.ru": PUMA_APP}),
}
# Kinds that are started with another kind alone.
FRONTS = {"nginx before php-fpm": Kind("nginx", "nginx-light", NGINX_WORDS, NGINX % FAST_CGI, signal.SIGHUP)}
