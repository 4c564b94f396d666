//! Text from the operating system: any bytes, kept exactly. In JSON a string if it is UTF-8, else
//! `{"base64": …}`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An argument, a path, a variable's name or value.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OsText(OsString);

impl OsText {
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// `None` if it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        self.0.to_str()
    }

    /// For people: invalid UTF-8 is replaced.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        self.0.to_string_lossy()
    }

    pub fn into_os_string(self) -> OsString {
        self.0
    }

    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(OsString::from_vec(bytes))
    }
}

impl fmt::Debug for OsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// For people: invalid UTF-8 is replaced.
impl fmt::Display for OsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl From<OsString> for OsText {
    fn from(text: OsString) -> Self {
        Self(text)
    }
}

impl From<&OsStr> for OsText {
    fn from(text: &OsStr) -> Self {
        Self(text.to_owned())
    }
}

impl From<PathBuf> for OsText {
    fn from(path: PathBuf) -> Self {
        Self(path.into_os_string())
    }
}

impl From<&Path> for OsText {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().to_owned())
    }
}

impl From<String> for OsText {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&String> for OsText {
    fn from(text: &String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for OsText {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for OsText {
    fn eq(&self, other: &str) -> bool {
        self.0 == *other
    }
}

impl PartialEq<&str> for OsText {
    fn eq(&self, other: &&str) -> bool {
        self.0 == **other
    }
}

impl AsRef<OsStr> for OsText {
    fn as_ref(&self) -> &OsStr {
        &self.0
    }
}

impl AsRef<Path> for OsText {
    fn as_ref(&self) -> &Path {
        self.as_path()
    }
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    base64: String,
}

impl Serialize for OsText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => serializer.serialize_str(text),
            None => {
                Encoded { base64: BASE64_STANDARD.encode(self.as_bytes()) }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for OsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = OsText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or an object with base64")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OsText, E> {
                Ok(text.into())
            }

            fn visit_string<E: serde::de::Error>(self, text: String) -> Result<OsText, E> {
                Ok(text.into())
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<OsText, A::Error> {
                let encoded =
                    Encoded::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                let bytes = BASE64_STANDARD.decode(encoded.base64);
                bytes.map(OsText::from_bytes).map_err(serde::de::Error::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_read_back() {
        for bytes in [b"plain".to_vec(), "ä".into(), vec![b'a', 0xff], vec![]] {
            let text = OsText::from_bytes(bytes.clone());
            let json = serde_json::to_string(&text).unwrap();
            let back: OsText = serde_json::from_str(&json).unwrap();
            assert_eq!(back.as_bytes(), bytes, "{json}");
        }
        assert_eq!(serde_json::to_string(&OsText::from("a")).unwrap(), "\"a\"");
    }
}
