//! Web servers and proxies: small files over kept connections, with or without TLS.

use crate::driver::Driver;
use crate::error::Error;
use crate::lab::Lab;
use crate::options::{Common, seconds, some};
use crate::record::Step;
use crate::service::{BACKEND_FILE, Client, Recipe, Service, WebServer, backend, certificate};
use crate::target::Target;
use crate::whet::Sides;
use crate::windows::measure;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Options of `web`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Web {
    #[command(flatten)]
    pub common: Common,
    /// The servers.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SERVER,…", default_value = "nginx,haproxy")]
    #[serde(default = "nginx_alone")]
    pub servers: Vec<WebServer>,
    /// Encrypt the connections.
    #[arg(long)]
    #[serde(default)]
    pub tls: bool,
    /// The numbers of connections; each is one step.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "4,16", value_parser = some)]
    pub threads: Vec<usize>,
    /// The number of files.
    #[arg(long, default_value_t = 100, value_parser = some)]
    pub files: usize,
    /// The size of a file. Bytes.
    #[arg(long, default_value_t = 1000, value_parser = some)]
    pub bytes: usize,
    /// The number of pairs of windows in a step.
    #[arg(long, default_value_t = 40, value_parser = some)]
    pub pairs: usize,
    /// The length of a window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = seconds)]
    pub window: f64,
    /// The wait between the change of sides and the window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.03, value_parser = seconds)]
    pub settle: f64,
}

/// Returns the servers of a run of a lab that had one only.
fn nginx_alone() -> Vec<WebServer> {
    vec![WebServer::Nginx]
}

impl Web {
    /// Measures each number of connections to each server in each place.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        let plan = self.common.plan(self.pairs, self.window, self.settle, false);
        let encrypted = if self.tls { ", TLS" } else { "" };
        let load = format!("files of {} bytes{encrypted}", self.bytes);
        for server in &self.servers {
            // A server may read the files at its start.
            self.make_files(&lab.work())?;
            lab.each_place(&self.common, |lab, place| {
                let mut behind = server.behind().map(|recipe| behind(lab, &recipe)).transpose()?;
                let mut service = lab.service(&server.recipe(self.tls), &[])?;
                let certificate = self.tls.then(|| certificate(service.folder()));
                let mut sides = Sides::of(lab.whet.as_ref(), &service)?;
                for &threads in &self.threads {
                    let step = Step::of(&service.name, &load, place, threads);
                    lab.step(&step, &mut service, &mut sides, |mut on| {
                        let socket = &on.server.socket;
                        let client = |_| Client::of_files(socket, self.files, certificate.as_deref());
                        let clients = (0..threads).map(client).collect::<Result<_, _>>()?;
                        let mut load = Driver::start(clients, &["get"], on.lab.seed, None);
                        // The proxy's answers do not say that it has lost its backend.
                        measure(&mut on, plan, &mut load).map_err(|e| match &mut behind {
                            Some(behind) => behind.explain(e),
                            None => e,
                        })
                    })?;
                }
                sides.restore()
            })?;
        }
        Ok(())
    }

    /// Makes the files beside the servers' folders.
    fn make_files(&self, work: &Path) -> Result<(), Error> {
        let www = work.join("www");
        fs::create_dir_all(&www).map_err(Error::file(&www))?;
        for file in 0..self.files {
            let path = www.join(file.to_string());
            fs::write(&path, "x".repeat(self.bytes)).map_err(Error::file(&path))?;
        }
        Ok(())
    }
}

/// Starts the server behind a proxy on the clients' CPUs, and writes the file that tells the proxy where it is.
fn behind(lab: &Lab, recipe: &Recipe) -> Result<Service, Error> {
    let service = Service::start(&lab.commands, recipe, &[], lab.folder.path(), &lab.placement.clients)?;
    let path = lab.work().join(BACKEND_FILE);
    fs::write(&path, backend(&service.socket)).map_err(Error::file(&path))?;
    Ok(service)
}
