//! The access tokens of the page: one key, stored beside the record, and the tokens derived from it.
//!
//! The key outlives the server, so that an open page continues to work when the server is started
//! again. A user who can read the key can read the record itself.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

const FILE: &str = "ui.key";
const LENGTH: usize = 32;
/// A symbolic link is not accepted as the key's file.
const O_NOFOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();
/// An older key is replaced at the next start.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Three secrets, none of which reveals another.
#[derive(Clone)]
pub struct AccessTokens {
    /// In the printed address, and the bearer token of programs.
    pub(crate) address: String,
    /// In the cookie.
    pub(crate) cookie: String,
    /// In every page, for requests that change something.
    pub(crate) page: String,
}

impl AccessTokens {
    /// The tokens of a store. A missing or unusable key is created; a key that cannot be stored is for this
    /// server only.
    pub fn load_or_create(store: &Path) -> io::Result<Self> {
        let path = store.join(FILE);
        if let Some(key) = load(&path) {
            return Ok(Self::from(&key));
        }
        let key = new_key()?;
        // The page also works for a record that cannot be written.
        drop(save(&path, &key));
        Ok(Self::from(&key))
    }

    /// Tokens of one server, which are not stored.
    pub fn new() -> io::Result<Self> {
        new_key().map(|key| Self::from(&key))
    }

    pub fn address_token(&self) -> &str {
        &self.address
    }

    fn from(key: &[u8; LENGTH]) -> Self {
        let of = |purpose: &str| {
            blake3::keyed_hash(key, purpose.as_bytes()).to_hex().as_str()[..40].to_owned()
        };
        Self {
            address: of("retake ui: token of the address"),
            cookie: of("retake ui: cookie"),
            page: of("retake ui: token of the page"),
        }
    }
}

fn new_key() -> io::Result<[u8; LENGTH]> {
    let mut key = [0; LENGTH];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(key)
}

/// The key in the file, if only this user can read it and it is not too old.
fn load(path: &Path) -> Option<[u8; LENGTH]> {
    let mut file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let user = rustix::process::geteuid().as_raw();
    let private = metadata.is_file() && metadata.uid() == user && metadata.mode() & 0o077 == 0;
    let age = SystemTime::now().duration_since(metadata.modified().ok()?).ok()?;
    if !private || age > LIFETIME || metadata.len() != LENGTH as u64 {
        return None;
    }
    let mut key = [0; LENGTH];
    file.read_exact(&mut key).ok()?;
    Some(key)
}

fn save(path: &Path, key: &[u8; LENGTH]) -> io::Result<()> {
    let staged = path.with_extension(format!("key.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(O_NOFOLLOW)
        .open(&staged)?;
    let written = file.write_all(key).and_then(|()| std::fs::rename(&staged, path));
    if written.is_err() {
        // It may be gone already; the error above is the one to report.
        drop(std::fs::remove_file(&staged));
    }
    written
}

/// Compares in a time that does not depend on how many bytes match.
pub(crate) fn matches_secret(given: &str, secret: &str) -> bool {
    blake3::hash(given.as_bytes()) == blake3::hash(secret.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_kept_private_and_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let first = AccessTokens::load_or_create(dir.path()).unwrap();
        let path = dir.path().join(FILE);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(AccessTokens::load_or_create(dir.path()).unwrap().address, first.address);
        assert!(first.address != first.cookie && first.cookie != first.page);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_that_others_could_read_or_that_is_old_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let first = AccessTokens::load_or_create(dir.path()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let second = AccessTokens::load_or_create(dir.path()).unwrap();
        assert_ne!(first.address, second.address);
        let old = SystemTime::now() - LIFETIME - Duration::from_secs(60);
        File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        assert_ne!(AccessTokens::load_or_create(dir.path()).unwrap().address, second.address);
    }

    #[test]
    fn a_token_is_created_even_if_it_cannot_be_stored() {
        let gone = Path::new("/nonexistent");
        assert_ne!(
            AccessTokens::load_or_create(gone).unwrap().address,
            AccessTokens::load_or_create(gone).unwrap().address
        );
    }
}
