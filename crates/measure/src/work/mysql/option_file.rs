//! Parses option files of MySQL's and MariaDB's own programs, as far as an account needs them.

use std::path::PathBuf;

/// The values by which a server is reached.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Account {
    pub user: Option<String>,
    pub password: Option<String>,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub socket: Option<PathBuf>,
}

impl std::fmt::Debug for Account {
    /// Leaves out the password, because logs keep debug output.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("user", &self.user).field("host", &self.host).finish_non_exhaustive()
    }
}

/// The groups that are read: those for clients, and `[whet]` for whet alone.
const GROUPS: [&str; 5] = ["client", "client-server", "client-mariadb", "mysql", "whet"];

impl Account {
    /// Parses the groups for clients. A later line overrides an earlier line. Lines that are not understood
    /// are meant for other programs and are ignored.
    pub fn parse(text: &str) -> Self {
        let mut account = Self::default();
        let mut is_ours = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with(['#', ';', '!']) {
                continue;
            }
            if let Some(group) = line.strip_prefix('[').and_then(|l| l.split_once(']')) {
                is_ours = GROUPS.contains(&group.0.trim());
                continue;
            }
            if let Some((key, value)) = line.split_once('=').filter(|_| is_ours) {
                account.set(key.trim(), unquoted(value.trim()));
            }
        }
        account
    }

    fn set(&mut self, key: &str, value: String) {
        match key {
            "user" => self.user = Some(value),
            "password" => self.password = Some(value),
            "host" => self.host = Some(value),
            "port" => self.port = value.parse().ok(),
            "socket" => self.socket = Some(value.into()),
            _ => {}
        }
    }
}

/// Returns a value without its quotes and its comment, with its escapes resolved, as in the section "Using
/// Option Files" of MySQL's manual.
fn unquoted(value: &str) -> String {
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    let inner = match quote {
        Some(q) => value[1..].rsplit_once(q).map_or(&value[1..], |(inner, _)| inner),
        // A comment may follow a value; a `#` inside quotes is part of the value.
        None => value.split('#').next().unwrap_or_default().trim_end(),
    };
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('\\', Some(next @ ('b' | 't' | 'n' | 'r' | 's' | '\\' | '"' | '\''))) => {
                rest.next();
                out.push(match next {
                    'b' => '\u{8}',
                    't' => '\t',
                    'n' => '\n',
                    'r' => '\r',
                    's' => ' ',
                    other => other,
                });
            }
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_for_clients_are_read() {
        let text = "\
            [mysqld]\nuser=mysql\npassword=no\n!include /etc/other\n# comment\n[client]\nuser = app \nport=3307\n\
            password='a#b;\"c'\n[whet]\nuser=watcher # of this tool\nsocket = \"/run/a b.sock\"\n[mysqldump]\nuser=x\n";
        let account = Account::parse(text);
        assert_eq!(account.user.as_deref(), Some("watcher"));
        assert_eq!(account.password.as_deref(), Some("a#b;\"c"));
        assert_eq!((account.port, account.host.as_deref()), (Some(3307), None));
        assert_eq!(account.socket.as_deref(), Some("/run/a b.sock".as_ref()));
        assert!(!format!("{account:?}").contains("a#b"));
    }

    #[test]
    fn escapes_are_resolved_and_odd_lines_ignored() {
        let password = |line: &str| Account::parse(&format!("[client]\n{line}")).password;
        assert_eq!(password("password=a\\sb\\\\c\\x"), Some("a b\\c\\x".to_owned()));
        assert_eq!(password("password="), Some(String::new()));
        assert_eq!(password("password=\"open"), Some("open".to_owned()));
        assert_eq!(password("password"), None);
        assert_eq!(password("=x\n[\n]\npassword=é\\"), Some("é\\".to_owned()));
    }
}
