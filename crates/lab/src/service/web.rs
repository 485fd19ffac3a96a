//! Recipes of web servers. Each runs in one process with one thread, and serves the files in `www` beside its
//! folder.

use super::recipe::{Recipe, USUAL, words};
use crate::command::Spec;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The server's certificate in its folder. Its key has the suffix that haproxy looks for.
const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "cert.pem.key";
/// The name of what is behind a proxy.
const BACKEND: &str = "files";
/// The file that tells a proxy its backend, beside the servers' folders.
pub const BACKEND_FILE: &str = "backend.cfg";

/// A web server.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WebServer {
    /// nginx, which serves files.
    Nginx,
    /// haproxy, which answers each request with the file `0`, from its memory.
    Haproxy,
    /// haproxy in front of nginx, which serves files on the clients' CPUs.
    HaproxyNginx,
}

impl WebServer {
    /// Returns the recipe. With `tls`, the server makes a certificate of its own for the name `lab`.
    pub fn recipe(self, tls: bool) -> Recipe {
        let recipe = match (self, tls) {
            (Self::Nginx, false) => Recipe { files: nginx_files::<false>, ..NGINX },
            (Self::Nginx, true) => Recipe { files: nginx_files::<true>, ..NGINX },
            (Self::Haproxy, false) => Recipe { files: haproxy_files::<false>, ..HAPROXY },
            (Self::Haproxy, true) => Recipe { files: haproxy_files::<true>, ..HAPROXY },
            (Self::HaproxyNginx, false) => Recipe { files: proxy_files::<false>, ..PROXY },
            (Self::HaproxyNginx, true) => Recipe { files: proxy_files::<true>, ..PROXY },
        };
        Recipe { setup: tls.then_some(make_certificate), ..recipe }
    }

    /// Returns the recipe of the server behind this one, if it is a proxy.
    pub fn behind(self) -> Option<Recipe> {
        (self == Self::HaproxyNginx)
            .then(|| Recipe { name: "nginx-behind-haproxy", ..Self::Nginx.recipe(false) })
    }
}

/// Returns the text of [`BACKEND_FILE`] for a server at this socket.
pub fn backend(socket: &Path) -> String {
    format!("backend {BACKEND}\n http-reuse always\n server nginx \"unix@{}\"\n", socket.display())
}

/// Returns the certificate of a server in its folder.
pub fn certificate(folder: &Path) -> PathBuf {
    folder.join(CERTIFICATE)
}

const NGINX: Recipe = Recipe {
    name: "nginx",
    programs: &["nginx"],
    package: "nginx-light",
    version: "-v",
    arguments: |folder, _| {
        let folder = folder.display().to_string();
        words(["-p", &folder, "-c", &format!("{folder}/nginx.conf"), "-e", "stderr"])
    },
    ..USUAL
};

const HAPROXY: Recipe = Recipe {
    name: "haproxy",
    programs: &["haproxy"],
    package: "haproxy",
    version: "-v",
    arguments: |folder, _| words(["-db", "-f", &folder.join("haproxy.cfg").display().to_string()]),
    ..USUAL
};

const PROXY: Recipe = Recipe {
    name: "haproxy-nginx",
    arguments: |folder, _| {
        let [own, backend] = [folder.join("haproxy.cfg"), folder.join("..").join(BACKEND_FILE)];
        words(["-db", "-f", &own.display().to_string(), "-f", &backend.display().to_string()])
    },
    ..HAPROXY
};

fn nginx_files<const TLS: bool>(folder: &Path, socket: &Path) -> Vec<(&'static str, String)> {
    let (folder, socket) = (folder.display(), socket.display());
    let mut lines = vec![
        "daemon off;".to_owned(),
        "master_process off;".to_owned(),
        format!("pid \"{folder}/nginx.pid\";"),
        "error_log stderr;".to_owned(),
        "events { worker_connections 4096; }".to_owned(),
        "http {".to_owned(),
        "access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;".to_owned(),
        "open_file_cache max=10000;".to_owned(),
    ];
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        lines.push(format!("{kind}_temp_path \"{folder}/{kind}\";"));
    }
    if TLS {
        lines.push(format!(
            "ssl_certificate \"{folder}/{CERTIFICATE}\"; ssl_certificate_key \"{folder}/{KEY}\";"
        ));
    }
    let ssl = if TLS { " ssl" } else { "" };
    lines.push(format!("server {{ listen \"unix:{socket}\"{ssl}; root \"{folder}/../www\"; }}"));
    lines.push("}\n".to_owned());
    vec![("nginx.conf", lines.join("\n"))]
}

fn haproxy_files<const TLS: bool>(folder: &Path, socket: &Path) -> Vec<(&'static str, String)> {
    let page = folder.join("../www/0");
    let answer =
        format!("http-request return status 200 content-type text/plain file \"{}\"", page.display());
    haproxy_configuration::<TLS>(folder, socket, &answer)
}

fn proxy_files<const TLS: bool>(folder: &Path, socket: &Path) -> Vec<(&'static str, String)> {
    haproxy_configuration::<TLS>(folder, socket, &format!("default_backend {BACKEND}"))
}

fn haproxy_configuration<const TLS: bool>(
    folder: &Path,
    socket: &Path,
    answer: &str,
) -> Vec<(&'static str, String)> {
    let (folder, socket) = (folder.display(), socket.display());
    let ssl = if TLS { format!(" ssl crt \"{folder}/{CERTIFICATE}\"") } else { String::new() };
    let text = format!(
        "global\n nbthread 1\n maxconn 4096\n\
         defaults\n mode http\n timeout client 1h\n timeout connect 1h\n timeout server 1h\n timeout http-keep-alive 1h\n\
         frontend lab\n bind \"unix@{socket}\"{ssl}\n {answer}\n"
    );
    vec![("haproxy.cfg", text)]
}

/// Makes a certificate for the name `lab`, signed by its own key.
fn make_certificate(_: &Path, folder: &Path) -> Spec {
    Spec::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "3650", "-subj", "/CN=lab"])
        .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
        .args(["-addext", "subjectAltName=DNS:lab", "-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(folder.join(KEY))
        .arg("-out")
        .arg(folder.join(CERTIFICATE))
}
