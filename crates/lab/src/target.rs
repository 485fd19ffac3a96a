//! The interface of everything that is measured: databases, other servers, interpreters.

use crate::db::Db;
use crate::error::Error;
use crate::server::Server;

/// A running server.
pub trait Target: std::fmt::Debug {
    /// Returns its process, or `None` if the server is on another host that no shell reaches.
    fn pid(&self) -> Option<i32>;

    /// Returns whether the process and its descendants are the server.
    fn is_family(&self) -> bool {
        false
    }

    /// Returns the version that it reports.
    fn version(&self) -> &str;

    /// Returns the options that the user or the scenario gave it.
    fn options(&self) -> &[String];

    /// Opens a session whose counters show the server's work. `None` if the load itself counts.
    ///
    /// # Errors
    /// An error if the server refuses the session.
    fn counters(&self) -> Result<Option<Db>, Error>;

    /// Returns [`Error::ServerGone`] if the server has ended, since other errors follow from its end; else
    /// `e`. An interrupt stays an interrupt.
    fn explain(&mut self, e: Error) -> Error;

    /// Returns the path of its program.
    fn exe(&self) -> String {
        let link = self.pid().and_then(|p| std::fs::read_link(format!("/proc/{p}/exe")).ok());
        link.map_or_else(|| "on another host".to_owned(), |p| p.display().to_string())
    }
}

impl Target for Server {
    fn pid(&self) -> Option<i32> {
        self.pid
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn options(&self) -> &[String] {
        &self.options
    }

    fn exe(&self) -> String {
        self.exe.clone()
    }

    fn counters(&self) -> Result<Option<Db>, Error> {
        self.address.connect().map(Some)
    }

    fn explain(&mut self, e: Error) -> Error {
        Self::explain(self, e)
    }
}
