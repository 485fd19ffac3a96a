//! Authenticates an account to the server.
//!
//! Supported methods: `mysql_native_password` (MariaDB's and old MySQL's default), `caching_sha2_password`
//! (MySQL's since 8.0), `unix_socket` and `auth_socket` (the server gets the user from the kernel), and
//! `mysql_clear_password` on a unix socket.

use super::wire::{Fields, Wire, WireError};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Capability bits of the handshake.
mod capability {
    pub const LONG_PASSWORD: u32 = 0x1;
    pub const PROTOCOL_41: u32 = 0x200;
    pub const TRANSACTIONS: u32 = 0x2000;
    pub const SECURE_CONNECTION: u32 = 0x8000;
    pub const PLUGIN_AUTH: u32 = 0x8_0000;
}

const NATIVE: &str = "mysql_native_password";
const SHA2: &str = "caching_sha2_password";
const UTF8MB4: u8 = 45;
/// The most packets that are read during a login. No login takes as many.
const TURNS: u32 = 8;

/// An account, and whether no other party can see the data of the connection.
pub struct Login<'a> {
    pub user: &'a str,
    pub password: &'a str,
    pub is_private: bool,
}

impl Login<'_> {
    /// Authenticates the account on a fresh connection.
    pub fn run(&self, wire: &mut Wire) -> Result<(), WireError> {
        let (mut method, mut nonce) =
            greeting(&wire.receive()?).ok_or(WireError::Malformed("the greeting"))?;
        // The greeting names the server's usual method. If the account has another method, the server
        // requests it.
        if method != SHA2 {
            NATIVE.clone_into(&mut method);
        }
        wire.send(&self.response(&method, &self.proof(&method, &nonce)?))?;
        for _ in 0..TURNS {
            let packet = wire.receive()?;
            let mut fields = Fields(&packet[1..]);
            match packet[0] {
                0x00 => return Ok(()),
                0xfe if packet.len() > 1 => {
                    method = String::from_utf8_lossy(fields.text()).into_owned();
                    nonce = fields.0.strip_suffix(&[0]).unwrap_or(fields.0).to_vec();
                    wire.send(&self.proof(&method, &nonce)?)?;
                }
                0xfe => return Err(WireError::Method("mysql_old_password".to_owned())),
                // The server has the password in its cache. The packet that accepts the login follows.
                0x01 if fields.0 == [3] => {}
                0x01 if fields.0 == [4] && method == SHA2 => wire.send(&self.in_the_clear()?)?,
                _ => return Err(WireError::Malformed("an answer to the login")),
            }
        }
        Err(WireError::Malformed("a login without end"))
    }

    fn response(&self, method: &str, proof: &[u8]) -> Vec<u8> {
        use capability as c;
        let capabilities =
            c::LONG_PASSWORD | c::PROTOCOL_41 | c::TRANSACTIONS | c::SECURE_CONNECTION | c::PLUGIN_AUTH;
        let mut packet = capabilities.to_le_bytes().to_vec();
        packet.extend((1u32 << 24).to_le_bytes());
        packet.push(UTF8MB4);
        packet.extend([0; 23]);
        packet.extend(self.user.bytes().chain([0]));
        // Either method of a first response has a proof of 20 or 32 bytes, so its length fits in one byte.
        packet.push(u8::try_from(proof.len()).unwrap_or(0));
        packet.extend(proof);
        packet.extend(method.bytes().chain([0]));
        packet
    }

    fn proof(&self, method: &str, nonce: &[u8]) -> Result<Vec<u8>, WireError> {
        match method {
            NATIVE | SHA2 if self.password.is_empty() => Ok(Vec::new()),
            NATIVE => Ok(scramble::<Sha1>(self.password.as_bytes(), nonce, true)),
            SHA2 => Ok(scramble::<Sha256>(self.password.as_bytes(), nonce, false)),
            "unix_socket" | "auth_socket" => Ok(Vec::new()),
            "mysql_clear_password" => self.in_the_clear(),
            other => Err(WireError::Method(other.to_owned())),
        }
    }

    fn in_the_clear(&self) -> Result<Vec<u8>, WireError> {
        if !self.is_private {
            return Err(WireError::Clear);
        }
        Ok(self.password.bytes().chain([0]).collect())
    }
}

/// Returns H(password) ^ H(nonce and H(H(password)), in the method's order).
fn scramble<H: Digest>(password: &[u8], nonce: &[u8], nonce_first: bool) -> Vec<u8> {
    let once = H::digest(password);
    let twice = H::digest(&once);
    let (a, b): (&[u8], &[u8]) = if nonce_first { (nonce, &twice) } else { (&twice, nonce) };
    let mask = H::new().chain_update(a).chain_update(b).finalize();
    once.iter().zip(&mask).map(|(x, y)| x ^ y).collect()
}

/// Parses the server's first packet. Returns the method and the nonce.
fn greeting(packet: &[u8]) -> Option<(String, Vec<u8>)> {
    let mut fields = Fields(packet);
    if fields.take(1)? != [10] {
        return None;
    }
    fields.text();
    fields.take(4)?;
    let mut nonce = fields.take(8)?.to_vec();
    // A zero byte, capabilities, character set, status, capabilities. The nonce's length and reserved bytes
    // follow.
    fields.take(1 + 2 + 1 + 2 + 2)?;
    let length = usize::from(*fields.take(1)?.first()?);
    fields.take(10)?;
    let second = fields.take(length.saturating_sub(8).max(13).min(fields.0.len()))?;
    nonce.extend(second.strip_suffix(&[0]).unwrap_or(second));
    let method = String::from_utf8_lossy(fields.text()).into_owned();
    Some((method, nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn proofs_are_what_servers_expect() {
        // These were computed independently, with Python's hashlib.
        let nonce: Vec<u8> = (1..=20).collect();
        assert_eq!(hex(&scramble::<Sha1>(b"secret", &nonce, true)), NATIVE_PROOF);
        assert_eq!(hex(&scramble::<Sha256>(b"secret", &nonce, false)), SHA2_PROOF);
    }

    const NATIVE_PROOF: &str = "b32bb3a583e1340c0a1108d58b1be49781ad8c2f";
    const SHA2_PROOF: &str = "746ebe205d56a0707acb3e796e834e0dd7b1d61743b26bd5202c7a623230c7c9";
}
