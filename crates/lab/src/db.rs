//! Sessions on the measured server.

use crate::error::Error;
use mysql::prelude::{FromRow, Queryable};
use mysql::{Conn, OptsBuilder, Row, from_row_opt};
use std::time::Duration;

/// The address of a server, and the account that the lab uses.
#[derive(Clone, Debug)]
pub struct Address {
    /// The server's name, for messages.
    pub server: String,
    /// Its unix socket, or `None` for TCP.
    pub socket: Option<String>,
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The account.
    pub user: String,
    /// Its password. It is sent to the server, and written to a file of the run that no other user can read.
    pub password: String,
    /// The database that the lab writes to.
    pub database: String,
}

impl Address {
    fn options(&self) -> OptsBuilder {
        OptsBuilder::new()
            .socket(self.socket.clone())
            .ip_or_hostname(Some(self.host.clone()))
            .tcp_port(self.port)
            .prefer_socket(false)
            .user(Some(self.user.clone()))
            .pass(Some(self.password.clone()))
            .tcp_connect_timeout(Some(Duration::from_secs(10)))
            .stmt_cache_size(200)
    }

    /// Opens a session without a database.
    ///
    /// # Errors
    /// [`Error::Denied`] if the server refuses the account, [`Error::Database`] if it cannot be reached.
    pub fn connect(&self) -> Result<Db, Error> {
        let conn = Conn::new(self.options()).map_err(|e| self.error(&e))?;
        Ok(Db { conn, address: self.clone() })
    }

    /// Opens a session in the lab's database.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn enter(&self) -> Result<Db, Error> {
        let options = self.options().db_name(Some(self.database.clone()));
        let conn = Conn::new(options).map_err(|e| self.error(&e))?;
        Ok(Db { conn, address: self.clone() })
    }

    fn error(&self, e: &mysql::Error) -> Error {
        let message = e.to_string();
        match e {
            // ER_ACCESS_DENIED_ERROR, ER_DBACCESS_DENIED_ERROR, ER_ACCESS_DENIED_NO_PASSWORD_ERROR.
            mysql::Error::MySqlError(m) if [1045, 1044, 1698].contains(&m.code) => {
                Error::Denied { server: self.server.clone(), user: self.user.clone(), message }
            }
            _ => Error::Database { server: self.server.clone(), message },
        }
    }
}

/// A session on a server.
#[derive(Debug)]
pub struct Db {
    /// The connection, for statements that the methods here do not cover.
    pub conn: Conn,
    address: Address,
}

impl Db {
    /// Runs a statement and drops its result.
    ///
    /// # Errors
    /// The server's error.
    pub fn run(&mut self, sql: &str) -> Result<(), Error> {
        self.conn.query_drop(sql).map_err(|e| self.address.error(&e))
    }

    /// Runs a query and returns its first row.
    ///
    /// # Errors
    /// The server's error. No row, or a row of another form, is an error as well.
    pub fn one<T: FromRow>(&mut self, sql: &str) -> Result<T, Error> {
        let row: Option<Row> = self.conn.query_first(sql).map_err(|e| self.address.error(&e))?;
        row.and_then(|row| from_row_opt(row).ok()).ok_or_else(|| Error::Database {
            server: self.address.server.clone(),
            message: format!("no answer, or an odd one, to {sql}"),
        })
    }

    /// Runs a query and returns the first column of all rows.
    ///
    /// # Errors
    /// The server's error.
    pub fn column(&mut self, sql: &str) -> Result<Vec<String>, Error> {
        let rows: Vec<Row> = self.conn.query(sql).map_err(|e| self.address.error(&e))?;
        Ok(rows.iter().filter_map(|row| row.get_opt(0)?.ok()).collect())
    }

    /// Returns a counter of SHOW GLOBAL STATUS.
    ///
    /// # Errors
    /// The server's error.
    pub fn status(&mut self, name: &str) -> Result<u64, Error> {
        let (_, count): (String, u64) = self.one(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
        Ok(count)
    }
}
