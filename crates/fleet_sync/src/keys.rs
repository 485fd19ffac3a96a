//! Signing keys, in minisign's form.

use crate::{Error, files};
use fleet::{Purpose, seal};
use minisign::{KeyPair, PublicKey, SecretKey, SecretKeyBox};
use std::fmt;
use std::path::{Path, PathBuf};

/// The variable with the password of a protected key.
const PASSWORD: &str = "WHET_FLEET_KEY_PASSWORD";

/// A key that signs.
pub struct SigningKey {
    secret: SecretKey,
    public: String,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey {{ public: {} }}", self.public)
    }
}

impl SigningKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// [`Error::Usage`] if the system gives no random numbers.
    pub fn generate() -> Result<Self, Error> {
        let pair = KeyPair::generate_unencrypted_keypair()
            .map_err(|e| Error::Usage(format!("cannot make a key: {e}")))?;
        Ok(Self { public: pair.pk.to_base64(), secret: pair.sk })
    }

    /// Writes the secret key to a file, and the public key beside it. Returns the path of the public key.
    ///
    /// # Errors
    /// [`Error::File`], also if the file exists.
    pub fn write(&self, path: &Path) -> Result<PathBuf, Error> {
        if path.exists() {
            return Err(files::failed(path, &"it exists; a key is never overwritten"));
        }
        let text = self.secret.to_box(None).map_err(|e| files::failed(path, &e))?.into_string();
        files::write(path, text.as_bytes(), 0o600)?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".pub");
        let beside = PathBuf::from(beside);
        let public = format!("untrusted comment: minisign public key of whet-fleet\n{}\n", self.public);
        files::write(&beside, public.as_bytes(), 0o644)?;
        Ok(beside)
    }

    /// Reads a secret key. A protected key needs its password in `WHET_FLEET_KEY_PASSWORD`.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = files::read(path)?.ok_or_else(|| files::failed(path, &"there is no such file"))?;
        let text =
            String::from_utf8(bytes).map_err(|_| files::failed(path, &"it is no minisign secret key"))?;
        let boxed = || SecretKeyBox::from_string(&text);
        let wrong = |e: minisign::PError| files::failed(path, &format!("it is no minisign secret key: {e}"));
        let secret = match boxed().map_err(wrong)?.into_unencrypted_secret_key() {
            Ok(secret) => secret,
            Err(e) => {
                let password = std::env::var(PASSWORD).map_err(|_| wrong(e))?;
                boxed().map_err(wrong)?.into_secret_key(Some(password)).map_err(wrong)?
            }
        };
        let public = PublicKey::from_secret_key(&secret).map_err(wrong)?.to_base64();
        Ok(Self { secret, public })
    }

    /// Returns the public key, as it stands in configurations.
    #[must_use]
    pub fn public(&self) -> &str {
        &self.public
    }

    /// Signs a document.
    ///
    /// # Errors
    /// [`Error::Usage`] if the key cannot sign.
    pub fn sign(&self, purpose: &Purpose, content: &[u8]) -> Result<Vec<u8>, Error> {
        let purpose = purpose.to_string();
        let signature =
            minisign::sign(None, &self.secret, content, Some(&purpose), Some("signature of whet-fleet"));
        let signature = signature.map_err(|e| Error::Usage(format!("cannot sign: {e}")))?;
        Ok(seal(&signature.into_string(), content))
    }
}
