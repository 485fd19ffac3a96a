//! Servers to measure: private servers on their own data folder, or a server that runs already.
//!
//! A private server lives as long as its [`Server`], its data as long as its [`Installation`]. Both end with the lab:
//! in order, by the unwinding of a panic, or by the kernel if the lab is killed. In the last case the next
//! lab on this run removes the data.

use crate::command::{Commands, Running, tail};
use crate::db::{Address, Db};
use crate::error::Error;
use crate::host::Host;
use crate::program::{Program, Settings, Source};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The default name of the lab's database.
pub const DATABASE: &str = "whet_lab";
/// Longest time in which a server must start.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest path of a unix socket, in bytes, that all servers accept.
const SOCKET_PATH: usize = 100;

/// Where a private server lives.
#[derive(Clone, Copy, Debug)]
pub struct Whereabouts<'a> {
    /// The folder for its log.
    pub logs: &'a Path,
    /// The folder below which its data folder is created.
    pub data: &'a Path,
    /// The CPUs that it may use.
    pub cpus: &'a [usize],
}

/// An installation of a server. Its data is created once, and used by several server processes in turn.
#[derive(Debug)]
pub struct Installation {
    /// The name in the report.
    pub name: String,
    commands: Commands,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Private {
        program: Program,
        dir: PathBuf,
        log: PathBuf,
        cpus: Vec<usize>,
        settings: Settings,
        _socket: Option<tempfile::TempDir>,
    },
    Running {
        address: Address,
        created: bool,
        host: Host,
    },
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// How to reach it.
    pub address: Address,
    /// Its process, or `None` if the server is on another host that no shell reaches.
    pub pid: Option<i32>,
    /// The path of its program.
    pub exe: String,
    /// The result of `SELECT VERSION()`, with the storage engine where that is XtraDB.
    pub version: String,
    /// The options that the user gave it.
    pub options: Vec<String>,
    host: Host,
    log: Option<PathBuf>,
    process: Option<Running>,
}

impl Installation {
    /// Creates a private server's data folder. The server's own program fills it. `taken` has the names of the
    /// run's other servers.
    ///
    /// # Errors
    /// An error if there is no such server, or if it cannot fill the folder.
    pub fn private(
        commands: &Commands,
        source: &Source,
        taken: &[String],
        at: &Whereabouts<'_>,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let Whereabouts { logs, data, cpus } = *at;
        let program = Program::find(commands, source)?;
        fs::create_dir_all(logs).map_err(Error::file(logs))?;
        let version = program.version(commands, logs)?;
        let name = apart(name_of(&version), taken);
        let dir = data.join(format!("server-{name}"));
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(Error::file(&dir))?;
        }
        fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        // Created only if the path is too long, since a killed lab leaves this folder behind.
        let is_long = dir.join("s").as_os_str().len() > SOCKET_PATH;
        let socket = is_long.then(|| tempfile::Builder::new().prefix("whet-lab-").tempdir()).transpose();
        let socket = socket.map_err(Error::file("/tmp"))?;
        let log = logs.join(format!("{name}.log"));
        let installation = Self {
            name,
            commands: commands.clone(),
            kind: Kind::Private {
                program: program.clone(),
                log,
                dir: dir.clone(),
                cpus: cpus.to_vec(),
                settings: settings.clone(),
                _socket: socket,
            },
        };
        program.create(commands, &version, &dir)?;
        Ok(installation)
    }

    /// Uses a server that runs already. Its database is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::Denied`] if the server refuses the account; [`Error::NotEmpty`] if the database has tables,
    /// views, stored routines or events. It is then left alone.
    pub fn running(commands: &Commands, host: &Host, url: &str, taken: &[String]) -> Result<Self, Error> {
        let mut address = parse_url(url)?;
        let mut db = address.connect()?;
        let version: String = db.one("SELECT VERSION()")?;
        address.server = apart(name_of(&version), taken);
        let database = address.database.clone();
        let there: u64 = db.one(&format!(
            "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '{database}'"
        ))?;
        // Views are among the tables.
        for (what, schema) in
            [("tables", "table_schema"), ("routines", "routine_schema"), ("events", "event_schema")]
        {
            let count: u64 = db.one(&format!(
                "SELECT COUNT(*) FROM information_schema.{what} WHERE {schema} = '{database}'"
            ))?;
            if count > 0 {
                return Err(Error::NotEmpty { server: address.server, name: database, what });
            }
        }
        db.run(&format!("CREATE DATABASE IF NOT EXISTS `{database}`"))?;
        let name = address.server.clone();
        let kind = Kind::Running { address, created: there == 0, host: host.clone() };
        Ok(Self { name, commands: commands.clone(), kind })
    }

    /// Starts the server, or connects to the running one.
    ///
    /// # Errors
    /// An error if the server does not start or cannot be reached; [`Error::PortInUse`] if another program
    /// listens on its port.
    pub fn start(&self) -> Result<Server, Error> {
        match &self.kind {
            Kind::Running { address, host, .. } => {
                let mut db = address.connect()?;
                let version = version_of(&mut db)?;
                let pid = process_of(&mut db, host)?;
                Ok(Server {
                    name: self.name.clone(),
                    address: address.clone(),
                    pid,
                    exe: path_of(pid, host)?,
                    version,
                    options: Vec::new(),
                    host: host.clone(),
                    log: None,
                    process: None,
                })
            }
            Kind::Private { program, dir, log, cpus, settings, _socket } => {
                let socket = socket_path(dir, _socket.as_ref());
                if let Some(port) = settings.port {
                    TcpListener::bind(("127.0.0.1", port)).map_err(|_| Error::PortInUse { port })?;
                }
                let address = Address {
                    server: self.name.clone(),
                    socket: settings.port.is_none().then(|| socket.display().to_string()),
                    host: "127.0.0.1".into(),
                    port: settings.port.unwrap_or(0),
                    user: "root".into(),
                    password: String::new(),
                    database: DATABASE.into(),
                };
                let spec = program.serve(dir, &socket, log, settings).on(cpus);
                let process = self.commands.spawn(&spec, Stdio::null(), Stdio::null())?;
                let pid = Some(process.pid());
                let host = Host::new(&self.commands, None);
                let mut server = Server {
                    name: self.name.clone(),
                    address,
                    pid,
                    exe: String::new(),
                    version: String::new(),
                    options: settings.more.clone(),
                    host,
                    log: Some(log.clone()),
                    process: Some(process),
                };
                server.wait_until_up(&self.commands, &socket)?;
                Ok(server)
            }
        }
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        match &self.kind {
            Kind::Private { program, dir, log, _socket, .. } => {
                let _ = fs::remove_dir_all(dir);
                program.forget(&self.commands, dir, &socket_path(dir, _socket.as_ref()), log);
            }
            // The lab's tables are removed. The database itself stays if it was there before, with its
            // character set, and with routines and events that the account may not see.
            Kind::Running { address, created, .. } => {
                if let Ok(mut db) = address.connect() {
                    let _ = if *created {
                        db.run(&format!("DROP DATABASE `{}`", address.database))
                    } else {
                        drop_tables(&mut db, &address.database)
                    };
                }
            }
        }
    }
}

impl Server {
    fn wait_until_up(&mut self, commands: &Commands, socket: &Path) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        // The lab's first session is by the socket, also where the load uses TCP: the socket is ready last.
        let by_socket = Address { socket: Some(socket.display().to_string()), ..self.address.clone() };
        loop {
            if self.has_ended() {
                return Err(Error::ServerStart { name: self.name.clone(), words: self.last_words() });
            }
            commands.interrupt.sleep(Duration::from_millis(50))?;
            match by_socket.connect() {
                Ok(mut db) => {
                    db.run(&format!("CREATE DATABASE IF NOT EXISTS `{DATABASE}`"))?;
                    if self.address.socket.is_none() {
                        // A server that resolves no names treats root@localhost and root@127.0.0.1 as
                        // different accounts. The user exists already after the first start, and old servers
                        // have no IF NOT EXISTS, so that error is ignored. GRANT reports whether the account
                        // can be used.
                        let _ = db.run("CREATE USER lab@'127.0.0.1' IDENTIFIED BY ''");
                        db.run("GRANT ALL ON *.* TO lab@'127.0.0.1'")?;
                        self.address.user = "lab".into();
                    }
                    self.version = version_of(&mut db)?;
                    self.exe = path_of(self.pid, &self.host)?;
                    return Ok(());
                }
                Err(e) if Instant::now() > until => return Err(e),
                Err(_) => {}
            }
        }
    }

    fn has_ended(&mut self) -> bool {
        match (&mut self.process, self.pid) {
            (Some(p), _) => !matches!(p.ended(), Ok(None)),
            (None, Some(pid)) => !self.host.calm().is_alive(pid).unwrap_or(true),
            (None, None) => false,
        }
    }

    fn last_words(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        tail(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()))
    }

    /// Returns [`Error::ServerGone`] if the server has ended, since other errors follow from its end; else
    /// `e`. An interrupt stays an interrupt, and a shell that failed cannot say whether the server has ended.
    pub fn explain(&mut self, e: Error) -> Error {
        if matches!(e, Error::Interrupted | Error::Shell { .. }) {
            return e;
        }
        // The sessions of a server that crashes end before its process is gone.
        std::thread::sleep(Duration::from_millis(300));
        if self.has_ended() {
            return Error::ServerGone {
                name: self.name.clone(),
                pid: self.pid.unwrap_or(0),
                words: self.last_words(),
            };
        }
        e
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.end(Duration::from_secs(60));
        }
    }
}

/// Drops all tables of a database.
fn drop_tables(db: &mut Db, database: &str) -> Result<(), Error> {
    // With foreign keys, only some orders are allowed.
    db.run("SET SESSION foreign_key_checks = 0")?;
    for table in db.column(&format!("SHOW TABLES FROM `{database}`"))? {
        db.run(&format!("DROP TABLE `{database}`.`{}`", table.replace('`', "``")))?;
    }
    Ok(())
}

/// Returns the pid of a server on a host. `None` if it runs on another one.
///
/// # Errors
/// [`Error::Usage`] if there is a shell, which must reach the server's host; [`Error::Shell`] if the shell fails.
fn process_of(db: &mut Db, host: &Host) -> Result<Option<i32>, Error> {
    match find_process(db, host)? {
        Ok(pid) => Ok(Some(pid)),
        Err(_) if host.is_here() => Ok(None),
        Err(why) => Err(Error::Usage(format!("--shell does not reach the server's process: {why}"))),
    }
}

/// Returns the pid of a server on a host, from the pid file that the server reports, or why it is not there. The
/// process's program must be called mariadbd or mysqld, and the server's host name must be that of the host.
fn find_process(db: &mut Db, host: &Host) -> Result<Result<i32, String>, Error> {
    let mut variable = |name: &str| db.one::<String>(&format!("SELECT @@{name}")).unwrap_or_default();
    let (name, file, base) = (variable("hostname"), variable("pid_file"), variable("datadir"));
    let there = host.text("/proc/sys/kernel/hostname")?;
    if name != there {
        return Ok(Err(format!("the shell runs on {there}, the server on {name}")));
    }
    let file = Path::new(&base).join(file).display().to_string();
    let Ok(pid) = host.text(&file)?.parse::<i32>() else {
        return Ok(Err(format!("the shell finds no pid in {file}")));
    };
    let exe = host.exe(pid)?.unwrap_or_default();
    let program = exe.file_name().unwrap_or_default().to_string_lossy();
    if ["mariadbd", "mysqld"].iter().any(|n| program.starts_with(n)) {
        return Ok(Ok(pid));
    }
    Ok(Err(format!("process {pid} runs {:?}, or may not be seen", exe.display().to_string())))
}

/// Returns the path of a server's program, for the records.
fn path_of(pid: Option<i32>, host: &Host) -> Result<String, Error> {
    let exe = pid.map(|pid| host.exe(pid)).transpose()?.flatten();
    Ok(exe.map_or_else(|| "on another host".to_owned(), |exe| exe.display().to_string()))
}

/// Returns a short name with the version: `mariadb-10.11.19`.
fn name_of(version: &str) -> String {
    let family = if version.to_lowercase().contains("mariadb") { "mariadb" } else { "mysql" };
    let digits = |w: &str| {
        let w: String = w.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        (w.matches('.').count() >= 2).then(|| w.trim_end_matches('.').to_owned())
    };
    let number = version.split(|c: char| c.is_whitespace()).find_map(digits);
    number.map_or_else(|| family.to_owned(), |n| format!("{family}-{n}"))
}

/// Returns a name that no other server of the run has: two builds may report the same version.
fn apart(name: String, taken: &[String]) -> String {
    let next = (2..).map(|n| format!("{name}-{n}"));
    let all = std::iter::once(name.clone()).chain(next);
    all.into_iter().find(|n| !taken.contains(n)).unwrap_or(name)
}

fn version_of(db: &mut Db) -> Result<String, Error> {
    let version: String = db.one("SELECT VERSION()")?;
    // MariaDB before 10.2 has Percona's branch of InnoDB (XtraDB) under the name InnoDB.
    let engine: Option<String> =
        db.one("SELECT comment FROM information_schema.engines WHERE engine = 'InnoDB'").ok();
    Ok(match engine.as_deref().and_then(|e| e.split(',').next()) {
        Some(name) if name.contains("XtraDB") => format!("{version} with {name}"),
        _ => version,
    })
}

fn socket_path(dir: &Path, short: Option<&tempfile::TempDir>) -> PathBuf {
    short.map_or(dir, tempfile::TempDir::path).join("s")
}

/// Parses `mysql://USER[:PASSWORD]@HOST[:PORT][/DATABASE][?socket=PATH]`. Without a password in the URL, the
/// password is that of WHET_LAB_PASSWORD.
fn parse_url(url: &str) -> Result<Address, Error> {
    let (plain, socket) = match url.split_once("?socket=") {
        Some((plain, socket)) => (plain, Some(socket.to_owned())),
        None => (url, None),
    };
    let opts = mysql::Opts::from_url(plain).map_err(|e| {
        Error::Usage(format!(
            "{:?} is no address of a server (mysql://USER@HOST:PORT/DATABASE): {e}",
            hide(url)
        ))
    })?;
    let from_outside = std::env::var("WHET_LAB_PASSWORD").unwrap_or_default();
    let database = opts.get_db_name().unwrap_or(DATABASE).to_owned();
    if !database.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(Error::Usage(format!(
            "{database:?}: letters, digits and _ alone in the database's name"
        )));
    }
    Ok(Address {
        server: format!("{}:{}", opts.get_ip_or_hostname(), opts.get_tcp_port()),
        socket,
        host: opts.get_ip_or_hostname().into_owned(),
        port: opts.get_tcp_port(),
        user: opts.get_user().unwrap_or("root").to_owned(),
        password: opts.get_pass().map_or(from_outside, ToOwned::to_owned),
        database,
    })
}

/// Returns a URL without its password, as files and messages may show it.
pub fn hide(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let Some((account, host)) = rest.rsplit_once('@') else { return url.to_owned() };
    let user = account.split(':').next().unwrap_or_default();
    format!("{scheme}://{user}@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_removed_from_urls() {
        assert_eq!(hide("mysql://me:se:c@ret@db:3306/x"), "mysql://me@db:3306/x");
        assert_eq!(hide("mysql://me@db"), "mysql://me@db");
    }

    #[test]
    fn names_have_family_and_version() {
        let debian = "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)";
        assert_eq!(name_of(debian), "mariadb-10.11.19");
        assert_eq!(
            name_of("/x/mysqld  Ver 9.7.0 for Linux on x86_64 (MySQL Community Server)"),
            "mysql-9.7.0"
        );
        assert_eq!(name_of("10.1.23-MariaDB"), "mariadb-10.1.23");
    }

    #[test]
    fn servers_of_one_version_have_names_of_their_own() {
        let mut taken: Vec<String> = Vec::new();
        for wanted in ["a", "a-2", "a-3"] {
            taken.push(apart("a".into(), &taken));
            assert_eq!(taken.last().map(String::as_str), Some(wanted));
        }
        assert_eq!(apart("b".into(), &taken), "b");
    }

    #[test]
    fn addresses() {
        let a = parse_url("mysql://me:word@10.0.0.1:3307/bench").unwrap();
        assert_eq!(
            (a.user.as_str(), a.password.as_str(), a.port, a.database.as_str()),
            ("me", "word", 3307, "bench")
        );
        assert_eq!(
            parse_url("mysql://me@localhost?socket=/run/x.sock").unwrap().socket.as_deref(),
            Some("/run/x.sock")
        );
        assert!(parse_url("postgres://x").is_err());
        assert!(parse_url("mysql://me@h/a%60b").is_err());
    }
}
