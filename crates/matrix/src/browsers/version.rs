//! A requested browser, and its exact version.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An exact version of four parts; ordered numerically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub [u32; 4]);

impl Version {
    pub fn major(self) -> u32 {
        self.0[0]
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "{a}.{b}.{c}.{d}")
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let wrong = || VersionError::Shape(text.to_owned());
        let mut parts = text.split('.').map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            if digits { part.parse::<u32>().ok() } else { None }
        });
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = parts.next().flatten().ok_or_else(wrong)?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self(numbers)) }
    }
}

/// A release channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    Stable,
    Beta,
    Dev,
    Canary,
}

impl Channel {
    pub(crate) const ALL: [Self; 4] = [Self::Stable, Self::Beta, Self::Dev, Self::Canary];

    /// The name in the index.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Stable => "Stable",
            Self::Beta => "Beta",
            Self::Dev => "Dev",
            Self::Canary => "Canary",
        }
    }
}

/// A browser in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrowserRequest {
    Exact(Version),
    Milestone(u32),
    Channel(Channel),
    /// An existing program, and its name.
    Program {
        path: PathBuf,
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    #[error(
        "{0} is a major version only; write m{0} for the newest of that milestone, or all four parts"
    )]
    BareMajor(String),
    #[error(
        "{0:?} is not a version; write all four parts (120.0.6099.109), a milestone (m120), stable, beta, dev or canary, or the path of a program"
    )]
    Shape(String),
}

impl FromStr for BrowserRequest {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let text = text.trim();
        if text.contains('/') {
            return Ok(Self::Program { path: PathBuf::from(text), name: text.to_owned() });
        }
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        if let Some(milestone) = text.strip_prefix(['m', 'M']).and_then(number) {
            return Ok(Self::Milestone(milestone));
        }
        let channel = Channel::ALL.into_iter().find(|c| c.key().eq_ignore_ascii_case(text));
        if let Some(channel) = channel {
            return Ok(Self::Channel(channel));
        }
        if number(text).is_some() {
            return Err(VersionError::BareMajor(text.to_owned()));
        }
        text.parse().map(Self::Exact)
    }
}

impl fmt::Display for BrowserRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(version) => version.fmt(f),
            Self::Milestone(milestone) => write!(f, "m{milestone}"),
            Self::Channel(channel) => f.write_str(&channel.key().to_ascii_lowercase()),
            Self::Program { name, .. } => f.write_str(name),
        }
    }
}

/// The start of a list of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Version(Version),
    Milestone(u32),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinceError {
    #[error(
        "{0} is a date, and the index of Chrome for Testing has none; give a version or a milestone such as m120"
    )]
    Date(String),
    #[error(transparent)]
    Version(#[from] VersionError),
}

impl FromStr for Since {
    type Err = SinceError;

    fn from_str(text: &str) -> Result<Self, SinceError> {
        let text = text.trim();
        let parts: Vec<&str> = text.split(['-', '/']).collect();
        let digits = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if parts.len() >= 2 && parts.iter().take(2).all(digits) {
            return Err(SinceError::Date(text.to_owned()));
        }
        match text.parse()? {
            BrowserRequest::Exact(version) => Ok(Self::Version(version)),
            BrowserRequest::Milestone(milestone) => Ok(Self::Milestone(milestone)),
            _ => Err(VersionError::Shape(text.to_owned()).into()),
        }
    }
}

impl Since {
    pub(crate) fn admits(self, version: Version) -> bool {
        match self {
            Self::Version(first) => version >= first,
            Self::Milestone(first) => version.major() >= first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_written_back() {
        for text in ["120.0.6099.109", "m120", "stable", "canary", "/usr/bin/chromium"] {
            assert_eq!(text.parse::<BrowserRequest>().unwrap().to_string(), text);
        }
        assert_eq!("Beta".parse(), Ok(BrowserRequest::Channel(Channel::Beta)));
    }

    #[test]
    fn a_bare_major_suggests_the_milestone() {
        let error = "120".parse::<BrowserRequest>().unwrap_err();
        assert_eq!(error, VersionError::BareMajor("120".into()));
        assert!(error.to_string().contains("m120"));
        for wrong in
            ["", "120.0", "120.0.6099", "1.2.3.4.5", "latest", "m", "mx", "1.2.3.+4", "1..3.4"]
        {
            let got = wrong.parse::<BrowserRequest>();
            assert_eq!(got, Err(VersionError::Shape(wrong.into())), "{wrong}");
        }
    }

    #[test]
    fn versions_are_ordered_as_numbers() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("99.0.4844.51") < version("113.0.5672.0"));
        assert!(version("120.0.6099.9") < version("120.0.6099.10"));
    }

    #[test]
    fn a_date_is_refused_with_the_reason() {
        for date in ["2024-01-31", "2024/01/31", "2024-01"] {
            let error = date.parse::<Since>().unwrap_err().to_string();
            assert!(error.contains("the index of Chrome for Testing has none"), "{error}");
        }
        assert_eq!("m120".parse(), Ok(Since::Milestone(120)));
        assert!("stable".parse::<Since>().is_err());
    }
}
