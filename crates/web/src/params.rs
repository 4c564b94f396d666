//! The query of an address, as filters and windows of the record. An error names the invalid
//! value.

use std::path::PathBuf;

use axum::http::Uri;
use jiff::Timestamp;
use retake_store::{RunCursor, RunFilter, RunStatus};
use retake_types::{Kind, OutcomeKind};

use crate::error::RequestError;

/// The requirement for a cursor.
pub(crate) const NO_PLACE: &str = "a position in this list; use `next` of the previous page";

/// The pairs after the `?` of an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    pairs: Vec<(String, String)>,
}

impl From<Vec<(String, String)>> for Params {
    fn from(mut pairs: Vec<(String, String)>) -> Self {
        // An empty field of a form counts as absent.
        pairs.retain(|(_, value)| !value.is_empty());
        Self { pairs }
    }
}

impl Params {
    pub(crate) fn from_uri(uri: &Uri) -> Self {
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|query| Self::from(query.0))
            .unwrap_or_default()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, RequestError> {
        self.parsed(name, "a number")
    }

    pub(crate) fn parsed<T: std::str::FromStr>(
        &self,
        name: &str,
        what: &str,
    ) -> Result<Option<T>, RequestError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let bad = |_| RequestError::bad_request(format!("{name}={text} is not {what}"));
        text.parse().map(Some).map_err(bad)
    }

    /// The number of entries on a page of a list.
    pub(crate) fn limit(&self, usual: usize, most: usize) -> Result<usize, RequestError> {
        match self.number("limit")? {
            None => Ok(usual),
            Some(0) => Err(RequestError::bad_request("limit=0: give a number from 1")),
            Some(given) => Ok(usize::try_from(given).unwrap_or(most).min(most)),
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, RequestError> {
        match self.get(name) {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => {
                Err(RequestError::bad_request(format!("{name}={other} is neither 1 nor 0")))
            }
        }
    }

    pub(crate) fn cursor(&self) -> Result<Option<RunCursor>, RequestError> {
        self.parsed("cursor", NO_PLACE)
    }

    pub(crate) fn kind(&self) -> Result<Option<Kind>, RequestError> {
        let Some(text) = self.get("kind") else { return Ok(None) };
        let known = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
        known.map(Some).ok_or_else(|| {
            RequestError::bad_request(format!(
                "kind={text} is not one of exec, matrix, agent, crash"
            ))
        })
    }

    pub(crate) fn filter(&self) -> Result<RunFilter, RequestError> {
        // SQLite would compare only the part before it.
        if let Some((name, _)) = self.pairs.iter().find(|(_, value)| value.contains('\0')) {
            return Err(RequestError::bad_request(format!(
                "{name} contains a NUL, which no run has"
            )));
        }
        let text = |name: &str| self.get(name).map(str::to_owned);
        let mut labels = Vec::new();
        for label in self.all("label") {
            let pair = label.split_once('=').filter(|(key, _)| !key.is_empty());
            let (key, value) = pair.ok_or_else(|| {
                RequestError::bad_request(format!("label={label} is not written KEY=VALUE"))
            })?;
            labels.push((key.to_owned(), value.to_owned()));
        }
        Ok(RunFilter {
            status: self.status()?,
            kind: self.kind()?,
            loop_id: self.parsed("loop", "the id of a loop")?,
            run_id: text("run_id"),
            session_id: text("session_id"),
            task_id: text("task_id"),
            labels,
            command: self.get("command").map(containing),
            cwd: self.get("cwd").map(absolute),
            host: text("host"),
            changed: self.get("changed").map(absolute),
            tests_failed: self.flag("tests_failed")?,
            since: self.time("since")?,
            until: self.time("until")?,
            ..RunFilter::default()
        })
    }

    /// Whether only these names have a value.
    pub(crate) fn only(&self, names: &[&str]) -> bool {
        self.pairs.iter().all(|(name, _)| names.contains(&name.as_str()))
    }

    /// Every name with its value.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The address of the first page, without one value of a parameter.
    pub(crate) fn without(&self, path: &str, (name, value): (&str, &str)) -> String {
        let kept = self.pairs().filter(|pair| *pair != (name, value) && pair.0 != "cursor");
        address_of(path, &kept.collect::<Vec<_>>())
    }

    /// Whether there is any filter, besides the search words and display options.
    pub(crate) fn filters(&self) -> bool {
        let view = |name: &str| matches!(name, "q" | "cursor" | "limit" | "col" | "sort" | "deep");
        self.pairs.iter().any(|(name, _)| !view(name))
    }

    fn status(&self) -> Result<Option<RunStatus>, RequestError> {
        let Some(text) = self.get("status") else { return Ok(None) };
        let outcome = OutcomeKind::ALL.into_iter().find(|word| word.as_str() == text);
        Ok(Some(match (text, outcome) {
            ("running", _) => RunStatus::Running,
            ("ok", _) => RunStatus::Ok,
            ("failed", _) => RunStatus::Failed,
            (_, Some(word)) => RunStatus::Outcome(word),
            _ => {
                let words = OutcomeKind::ALL.map(OutcomeKind::as_str).join(", ");
                return Err(RequestError::bad_request(format!(
                    "status={text} is not one of running, ok, failed, {words}"
                )));
            }
        }))
    }

    /// A point in time, or the beginning of a day in the server's time zone.
    fn time(&self, name: &str) -> Result<Option<Timestamp>, RequestError> {
        if let Some(day) = self.get(name).and_then(|text| text.parse::<jiff::civil::Date>().ok())
            && self.get(name).is_some_and(|text| text.len() == 10)
            && let Ok(zoned) = day.to_zoned(jiff::tz::TimeZone::system())
        {
            return Ok(Some(zoned.timestamp()));
        }
        self.parsed(name, "a time such as 2026-05-01 or 2026-05-01T12:00:00Z")
    }

    /// The address with other values for some parameters; an empty value removes one.
    pub(crate) fn with(&self, path: &str, changes: &[(&str, &str)]) -> String {
        let kept = self.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let kept = kept.filter(|(key, _)| !changes.iter().any(|(changed, _)| changed == key));
        let added = changes.iter().copied().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<(&str, &str)> = kept.chain(added).collect();
        address_of(path, &pairs)
    }
}

/// An address with a query.
pub(crate) fn address_of(path: &str, pairs: &[(&str, &str)]) -> String {
    let mut address = path.to_owned();
    for (at, (key, value)) in pairs.iter().enumerate() {
        address.push(if at == 0 { '?' } else { '&' });
        encode(key, &mut address);
        address.push('=');
        encode(value, &mut address);
    }
    address
}

/// Matches a part of a command line, unless the text is a pattern itself.
fn containing(text: &str) -> String {
    if text.contains(['*', '?', '[']) { text.to_owned() } else { format!("*{text}*") }
}

/// A path relative to the server's working directory; without a current directory it stays as it is.
fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// A text as a part of an address.
pub(crate) fn encoded(text: &str) -> String {
    let mut address = String::new();
    encode(text, &mut address);
    address
}

/// A part of an address as text.
pub(crate) fn decoded(part: &str) -> String {
    // Characters that cannot be part of an address decode to nothing.
    let uri = format!("/?part={part}").parse().unwrap_or_default();
    Params::from_uri(&uri).get("part").unwrap_or_default().to_owned()
}

fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                into.push(char::from(byte));
            }
            _ => into.push_str(&format!("%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        let owned: Vec<_> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Params::from(owned)
    }

    #[test]
    fn invalid_parameters_are_refused_by_name() {
        for (name, value) in [
            ("status", "fine"),
            ("kind", "x"),
            ("loop", "x"),
            ("label", "=v"),
            ("since", "yesterday"),
            ("tests_failed", "yes"),
        ] {
            let error = params(&[(name, value)]).filter().unwrap_err();
            assert!(error.message.contains(&format!("{name}={value}")), "{}", error.message);
        }
        assert!(params(&[("cursor", "1")]).cursor().is_err());
        let day = params(&[("since", "2026-05-01")]).filter().unwrap().since.unwrap();
        assert!(day.to_string().starts_with("2026-0"), "{day}");
        assert!(params(&[("command", "a\0b")]).filter().is_err());
        assert!(params(&[("limit", "0")]).limit(50, 200).is_err());
        assert_eq!(params(&[("limit", "999999")]).limit(50, 200).unwrap(), 200);
    }

    #[test]
    fn changing_a_parameter_of_an_address_keeps_the_others() {
        let params = params(&[("q", "a&b=ü"), ("cursor", "1.2"), ("kind", "")]);
        assert_eq!(params.with("/runs", &[("cursor", "")]), "/runs?q=a%26b%3D%C3%BC");
        assert_eq!(params.with("/runs", &[("q", ""), ("cursor", "3")]), "/runs?cursor=3");
        assert_eq!(params.without("/runs", ("q", "a&b=ü")), "/runs");
        assert_eq!(params.without("/runs", ("q", "other")), "/runs?q=a%26b%3D%C3%BC");
        assert!(params.only(&["q", "cursor"]) && !params.only(&["q"]));
    }
}
