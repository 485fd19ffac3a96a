//! A connection to a server's Unix socket, with or without TLS.

use crate::error::Error;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plain(UnixStream),
    /// With TLS.
    Tls(Box<StreamOwned<ClientConnection, UnixStream>>),
}

impl Stream {
    /// Connects to a socket. With a certificate, the connection uses TLS, and the server must have this
    /// certificate for the name `lab`.
    ///
    /// # Errors
    /// [`Error::File`] if the server does not accept the connection, or the certificate cannot be read;
    /// [`Error::Load`] if TLS cannot use the certificate.
    pub fn connect(socket: &Path, certificate: Option<&Path>) -> Result<Self, Error> {
        let stream = UnixStream::connect(socket).map_err(Error::file(socket))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(Error::file(socket))?;
        let Some(path) = certificate else { return Ok(Self::Plain(stream)) };
        let pem = std::fs::read(path).map_err(Error::file(path))?;
        let connection = client(&pem).map_err(|why| Error::Load { load: "TLS".to_owned(), why })?;
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, stream))))
    }
}

/// Returns a client that trusts this certificate alone.
fn client(pem: &[u8]) -> Result<ClientConnection, String> {
    let certificate = CertificateDer::from_pem_slice(pem).map_err(|e| e.to_string())?;
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate).map_err(|e| e.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|e| e.to_string())?;
    let config = config.with_root_certificates(trusted).with_no_client_auth();
    let name = ServerName::try_from("lab").map_err(|e| e.to_string())?;
    ClientConnection::new(Arc::new(config), name).map_err(|e| e.to_string())
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(bytes),
            Self::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
