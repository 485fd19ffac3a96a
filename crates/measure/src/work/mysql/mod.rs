//! Statements, as a MySQL or MariaDB server counts them itself.
//!
//! Why not the crate `mysql`, which the lab uses: whet runs with privileges and sends one query. With its
//! smallest features, that crate brings 64 more crates to the 99 of whet (URLs, Unicode tables, regular
//! expressions, big numbers) and 2.3 MB to the program. An answer that this client does not understand
//! is an error, and costs no more than the measurement.

mod login;
mod option_file;
mod wire;

use super::Work;
use crate::WorkError;
use engine::{ExitCode, Pid};
use login::Login;
use option_file::Account;
use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::{Stream, Wire, WireError};

/// The longest time that the server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u16 = 3306;
/// The query for the number of statements that clients sent, prepared statements included. The server counts
/// the query itself before it answers.
const QUESTION: &str = "SHOW GLOBAL STATUS LIKE 'Questions'";

/// The way to reach a server. A socket or host given here comes first. Then comes the socket on which the
/// target listens. Then the option file applies, and after it the environment (`MYSQL_PWD`, `MYSQL_HOST`,
/// `MYSQL_TCP_PORT`, `MYSQL_UNIX_PORT`), and last the local host. The account is the one given here, then the
/// option file's, then the user's own name.
#[derive(Clone, Debug, Default)]
pub struct MySqlOptions {
    /// The server's unix socket.
    pub socket: Option<PathBuf>,
    /// The server's host, or `HOST:PORT`. Without a port here, the option file or the environment names it;
    /// the default is 3306. Not used with a socket.
    pub host: Option<String>,
    /// The account's name.
    pub user: Option<String>,
    /// A file of options as MySQL's own programs read it. Without this, `~/.my.cnf` is read if it exists. The
    /// password comes from this file or from the environment, because every user can read a command line.
    pub option_file: Option<PathBuf>,
}

/// A session with a server.
#[derive(Debug)]
pub struct MySql {
    wire: Wire,
    /// The number of this session's own queries that the count includes.
    asked: u64,
}

impl MySql {
    /// Logs in to the server that the options name, or to the server that is process `pid`.
    ///
    /// # Errors
    /// [`WorkError`] if no server is there, the account is refused, or the option file cannot be read.
    pub fn open(pid: Pid, options: &MySqlOptions) -> Result<Self, WorkError> {
        let account = account(options)?;
        let (stream, is_private) = connect(pid, options, &account)?;
        let mut wire = Wire::new(stream);
        let user = options.user.clone().or(account.user).unwrap_or_else(own_name);
        let login = Login { user: &user, password: account.password.as_deref().unwrap_or(""), is_private };
        login.run(&mut wire).map_err(|e| login_error(&e, &user))?;
        let mut this = Self { wire, asked: 0 };
        this.read().map(|_| this)
    }
}

impl Drop for MySql {
    fn drop(&mut self) {
        self.wire.quit();
    }
}

impl Work for MySql {
    fn what(&self) -> String {
        "statements (Questions of the server's status)".to_owned()
    }

    fn kind(&self) -> &'static str {
        "mysql"
    }

    fn read(&mut self) -> Result<f64, WorkError> {
        let rows = self.wire.query(QUESTION).map_err(|e| error(&e, "check that the server runs"))?;
        self.asked += 1;
        let count = match rows.as_slice() {
            [row] => row.get(1).and_then(Option::as_ref).and_then(|n| n.parse::<u64>().ok()),
            _ => None,
        };
        let count = count.ok_or(WireError::Malformed("the status counter Questions"));
        let count = count.map_err(|e| error(&e, "is it a MySQL or MariaDB server?"))?;
        Ok(count.saturating_sub(self.asked) as f64)
    }
}

fn error(e: &WireError, next: &str) -> WorkError {
    let exit = match e {
        WireError::Io(_) => ExitCode::Gone,
        WireError::Server { .. } | WireError::Method(_) | WireError::Clear => ExitCode::Permission,
        WireError::Malformed(_) => ExitCode::Usage,
    };
    WorkError { message: e.to_string(), next: next.to_owned(), exit }
}

fn login_error(e: &WireError, user: &str) -> WorkError {
    let next = match e {
        WireError::Clear => "connect by the server's unix socket (--mysql-socket)".to_owned(),
        WireError::Method(_) => {
            "give an account with a password that the server keeps itself, or one of unix_socket".to_owned()
        }
        _ => format!(
            "the account was {user:?}: give another by --mysql-user, its password by --mysql-option-file or MYSQL_PWD; it \
             needs no privileges"
        ),
    };
    error(e, &next)
}

/// Reads the option file and the environment. A file that the options name must exist.
fn account(options: &MySqlOptions) -> Result<Account, WorkError> {
    let home = || std::env::var_os("HOME").map(|h| Path::new(&h).join(".my.cnf")).filter(|f| f.exists());
    let mut account = match options.option_file.clone().or_else(home) {
        Some(file) => {
            let text = fs::read(&file).map_err(|e| WorkError {
                message: format!("{}: {e}", file.display()),
                next: "check the path of the option file and its permissions".to_owned(),
                exit: ExitCode::Usage,
            })?;
            Account::parse(&String::from_utf8_lossy(&text))
        }
        None => Account::default(),
    };
    account.password = account.password.or_else(|| std::env::var("MYSQL_PWD").ok());
    account.host = account.host.or_else(|| std::env::var("MYSQL_HOST").ok());
    account.port = account.port.or_else(|| std::env::var("MYSQL_TCP_PORT").ok()?.parse().ok());
    account.socket = account.socket.or_else(|| std::env::var_os("MYSQL_UNIX_PORT").map(PathBuf::from));
    Ok(account)
}

fn own_name() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|v| std::env::var(v).ok());
    named.filter(|n| !n.is_empty()).unwrap_or_else(|| "root".to_owned())
}

/// Connects to the server. Returns the connection, and whether no other party can see its data.
fn connect(
    pid: Pid,
    options: &MySqlOptions,
    account: &Account,
) -> Result<(Box<dyn Stream>, bool), WorkError> {
    // The options come first. The target's own socket comes before a host in the option file, which is meant
    // for clients of everyday use.
    let socket = match (&options.socket, &options.host) {
        (Some(socket), _) => Some(socket.clone()),
        (None, Some(_)) => None,
        (None, None) => own_socket(pid).or_else(|| account.socket.clone()),
    };
    if let Some(path) = socket {
        let stream = UnixStream::connect(&path).map_err(|e| unreachable(&path.display().to_string(), &e))?;
        let timeouts = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
        timeouts.map_err(|e| unreachable(&path.display().to_string(), &e))?;
        return Ok((Box::new(stream), true));
    }
    let named = options.host.as_ref().or(account.host.as_ref());
    let host = named.cloned().unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = account.port.unwrap_or(PORT);
    let stream = connect_to(&host, port).map_err(|e| unreachable(&host, &e))?;
    Ok((Box::new(stream), false))
}

fn connect_to(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let with_port = host.rsplit_once(':').filter(|(h, p)| p.parse::<u16>().is_ok() && !h.contains(':'));
    let addresses: Vec<_> = match with_port {
        Some(_) => host.to_socket_addrs()?.collect(),
        None => (host.trim_matches(['[', ']']), port).to_socket_addrs()?.collect(),
    };
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn unreachable(place: &str, e: &std::io::Error) -> WorkError {
    WorkError {
        message: format!("no server can be reached at {place}: {e}"),
        next: "say where it is by --mysql-socket or --mysql-host".to_owned(),
        exit: ExitCode::NotFound,
    }
}

/// Returns the unix socket on which a process listens, as a path in this process's view. Leaves out the
/// socket of MySQL's X protocol.
fn own_socket(pid: Pid) -> Option<PathBuf> {
    let open: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(|e| fs::read_link(e.ok()?.path()).ok()?.into_os_string().into_string().ok())
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).ok()?;
    let path = listening(&table).find(|(inode, path)| {
        open.iter().any(|o| o == inode) && path.starts_with('/') && !path.contains("mysqlx")
    })?;
    // The path leads through the process's own root directory, because the process may be in a container.
    Some(PathBuf::from(format!("/proc/{pid}/root{}", path.1)))
}

/// Parses /proc/net/unix. Returns the inodes and paths of listening sockets.
fn listening(table: &str) -> impl Iterator<Item = (&str, &str)> {
    /// `__SO_ACCEPTCON`.
    const ACCEPTS: u32 = 0x1_0000;
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
        let (inode, path) = (fields.nth(2)?, fields.next()?);
        (flags & ACCEPTS != 0).then_some((inode, path))
    })
}

#[cfg(test)]
mod tests;
