//! The index of Chrome for Testing: the available versions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::BrowserError;
use super::download::{self, get_text};
use super::version::{Channel, Since, Version};

const INDEX: &str = "https://googlechromelabs.github.io/chrome-for-testing";
const DOWNLOADS: &str = "https://storage.googleapis.com/chrome-for-testing-public";

/// The addresses of the index and the archives; unset ones have their public default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    pub index: Option<String>,
    pub downloads: Option<String>,
}

impl Addresses {
    /// The configured addresses, which variables override.
    pub fn new(
        index: Option<&str>,
        downloads: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let of = |name: &str, configured: Option<&str>| {
            let given = variable(name).filter(|value| !value.is_empty());
            let url = given.or_else(|| configured.map(str::to_owned));
            url.map(|url| url.trim_end_matches('/').to_owned())
        };
        Self {
            index: of("RETAKE_CHROME_INDEX_URL", index),
            downloads: of("RETAKE_CHROME_DOWNLOAD_URL", downloads),
        }
    }
}

/// The platform's name in the index and in the cache.
pub(super) fn platform() -> Option<(&'static str, &'static str)> {
    match std::env::consts::ARCH {
        "x86_64" => Some(("linux64", "linux")),
        "aarch64" => Some(("linux-arm64", "linux_arm")),
        _ => None,
    }
}

/// One row of `list-chrome`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedVersion {
    pub version: String,
    pub milestone: u32,
    /// Whether there is an archive for this platform.
    pub available: bool,
    pub installed: Option<PathBuf>,
}

#[derive(Deserialize)]
struct KnownGood {
    versions: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    version: String,
    #[serde(default)]
    downloads: BTreeMap<String, Vec<Download>>,
}

#[derive(Deserialize)]
struct Download {
    platform: String,
    url: String,
}

#[derive(Deserialize)]
struct Milestones {
    milestones: BTreeMap<String, Newest>,
}

#[derive(Deserialize)]
struct Channels {
    channels: BTreeMap<String, Newest>,
}

#[derive(Deserialize)]
struct Newest {
    version: String,
}

/// The index, fetched on every use: versions that must not change are pinned in the record.
#[derive(Clone, Debug)]
pub struct Index {
    addresses: Addresses,
    pub(super) interrupted: fn() -> bool,
}

impl Index {
    pub(super) fn new(addresses: Addresses) -> Self {
        Self { addresses, interrupted: || false }
    }

    fn get<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, BrowserError> {
        let base = self.addresses.index.as_deref().unwrap_or(INDEX);
        let url = format!("{base}/{name}");
        let text = get_text(&url, self.interrupted)?;
        serde_json::from_str(&text)
            .map_err(|error| BrowserError::BadIndex { url, why: error.to_string() })
    }

    fn version(&self, name: &str, text: &str) -> Result<Version, BrowserError> {
        text.parse().map_err(|error: super::VersionError| BrowserError::BadIndex {
            url: name.to_owned(),
            why: error.to_string(),
        })
    }

    pub(super) fn milestone(&self, milestone: u32) -> Result<Version, BrowserError> {
        let name = "latest-versions-per-milestone.json";
        let known: Milestones = self.get(name)?;
        match known.milestones.get(&milestone.to_string()) {
            Some(newest) => self.version(name, &newest.version),
            None => {
                let numbers = known.milestones.keys().filter_map(|key| key.parse::<u32>().ok());
                let (first, last) =
                    numbers.fold((u32::MAX, 0), |(a, b), number| (a.min(number), b.max(number)));
                Err(BrowserError::NoMilestone { milestone, first, last })
            }
        }
    }

    pub(super) fn channel(&self, channel: Channel) -> Result<Version, BrowserError> {
        let name = "last-known-good-versions.json";
        let known: Channels = self.get(name)?;
        let newest = known
            .channels
            .get(channel.key())
            .ok_or_else(|| BrowserError::NoChannel { channel: channel.key().to_owned() })?;
        self.version(name, &newest.version)
    }

    fn known_good(&self) -> Result<Vec<(Version, Entry)>, BrowserError> {
        let known: KnownGood = self.get("known-good-versions-with-downloads.json")?;
        let mut versions: Vec<(Version, Entry)> = known
            .versions
            .into_iter()
            .filter_map(|entry| Some((entry.version.parse().ok()?, entry)))
            .collect();
        versions.sort_by_key(|(version, _)| *version);
        Ok(versions)
    }

    /// The available versions, oldest first: those since a version or milestone, limited to the
    /// newest few if requested.
    pub fn list(
        &self,
        since: Option<Since>,
        latest: Option<usize>,
        installed: impl Fn(&str) -> Option<PathBuf>,
    ) -> Result<Vec<ListedVersion>, BrowserError> {
        let mut listed: Vec<ListedVersion> = self
            .known_good()?
            .into_iter()
            .filter(|(version, _)| since.is_none_or(|since| since.admits(*version)))
            .map(|(version, entry)| ListedVersion {
                milestone: version.major(),
                available: entry.url().is_some(),
                installed: installed(&entry.version),
                version: entry.version,
            })
            .collect();
        if let Some(latest) = latest {
            listed.drain(..listed.len().saturating_sub(latest));
        }
        Ok(listed)
    }

    /// The versions between two, with an archive for this platform, oldest first.
    pub fn between(&self, one: Version, other: Version) -> Result<Vec<Version>, BrowserError> {
        let (first, last) = (one.min(other), one.max(other));
        let known = self.known_good()?.into_iter();
        Ok(known
            .filter(|(version, entry)| (first..=last).contains(version) && entry.url().is_some())
            .map(|(version, _)| version)
            .collect())
    }

    /// Possible addresses of a version's archive, most likely first.
    pub(super) fn archives(&self, version: &str) -> Result<Vec<String>, BrowserError> {
        let (platform, _) = platform().ok_or(BrowserError::NoPlatform)?;
        let below = |base: &str| format!("{base}/{version}/{platform}/chrome-{platform}.zip");
        if let Some(base) = &self.addresses.downloads {
            return Ok(vec![below(base)]);
        }
        let mut urls = Vec::new();
        if self.addresses.index.is_some() {
            // A custom index says where its archives are.
            let entry = self.known_good()?.into_iter().find(|(_, entry)| entry.version == version);
            urls.extend(entry.and_then(|(_, entry)| entry.url()));
        }
        urls.push(below(DOWNLOADS));
        Ok(urls)
    }

    /// The versions nearest to a missing one; empty if the index cannot be read.
    pub(super) fn near(&self, version: &str) -> Vec<String> {
        let Ok(wanted) = version.parse::<Version>() else { return Vec::new() };
        let Ok(known) = self.known_good() else { return Vec::new() };
        // The index may list a version whose archive is missing.
        let others: Vec<Version> = known
            .into_iter()
            .filter(|(version, entry)| *version != wanted && entry.url().is_some())
            .map(|(version, _)| version)
            .collect();
        let at = others.partition_point(|version| *version < wanted);
        others.iter().skip(at.saturating_sub(1)).take(2).map(ToString::to_string).collect()
    }

    pub(super) fn download(&self) -> download::Client {
        download::Client::new()
    }
}

impl Entry {
    fn url(&self) -> Option<String> {
        let (platform, _) = platform()?;
        let archives = self.downloads.get("chrome")?;
        archives.iter().find(|d| d.platform == platform).map(|d| d.url.clone())
    }
}
