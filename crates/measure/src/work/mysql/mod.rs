//! Statements, by a MySQL or MariaDB server's own count.

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

/// How long the server may take to answer anything.
const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u16 = 3306;
/// Statements that clients sent, prepared ones included; the server counts ours before it answers.
const QUESTION: &str = "SHOW GLOBAL STATUS LIKE 'Questions'";

/// How to reach a server. What is not said here is taken from the option file, then from the environment (`MYSQL_PWD`,
/// `MYSQL_HOST`, `MYSQL_TCP_PORT`, `MYSQL_UNIX_PORT`), then guessed: the socket the target listens on, the user's own name.
#[derive(Clone, Debug, Default)]
pub struct MySqlOptions {
    /// Its unix socket.
    pub socket: Option<PathBuf>,
    /// Its host, with `:PORT` if it is not 3306. Not with a socket.
    pub host: Option<String>,
    /// The account.
    pub user: Option<String>,
    /// A file of options as MySQL's own programs read it; without one, `~/.my.cnf` if it is there. The password comes from
    /// here or from the environment, as everybody may read a command line.
    pub option_file: Option<PathBuf>,
}

/// A session with a server.
#[derive(Debug)]
pub struct MySql {
    wire: Wire,
    /// Questions of ours that are in the count.
    asked: u64,
}

impl MySql {
    /// Logs in at the server that is process `pid`, or that the options name.
    ///
    /// # Errors
    /// [`WorkError`]: no server there, the account is refused, the option file cannot be read.
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

/// What the option file says; the file that was asked for must be there.
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

/// A connection, and whether nobody else can see what it carries.
fn connect(
    pid: Pid,
    options: &MySqlOptions,
    account: &Account,
) -> Result<(Box<dyn Stream>, bool), WorkError> {
    // What was asked for goes before what a file says, and the target's own socket before a host that a file names for
    // clients of everyday life.
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

/// The unix socket on which a process listens, as a path from here; not that of MySQL's X protocol.
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
    // Through the process's own root: it may live in a container.
    Some(PathBuf::from(format!("/proc/{pid}/root{}", path.1)))
}

/// Inodes and paths of sockets in the state of listening, from /proc/net/unix.
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
