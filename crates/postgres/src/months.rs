//! The months for whose runs the database has tables. An id begins with the start time of its run, so a
//! month is a range of ids.

use std::collections::BTreeSet;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use postgres::Client;
use retake_types::RunId;

use super::Error;

/// Months whose tables are known to exist.
#[derive(Debug, Default)]
pub(super) struct Months {
    there: BTreeSet<Date>,
}

impl Months {
    /// Creates the missing tables for these runs.
    pub(super) fn add(
        &mut self,
        client: &mut Client,
        ids: impl Iterator<Item = RunId>,
    ) -> Result<(), Error> {
        let now = Timestamp::now();
        let wanted: BTreeSet<Date> = ids.filter_map(|id| month_of(id, now)).collect();
        for month in wanted {
            if self.there.contains(&month) {
                continue;
            }
            let name = format!("retake.runs_{:04}_{:02}", month.year(), month.month());
            let there = client.query_one("SELECT to_regclass($1::text) IS NOT NULL", &[&name])?;
            if !there.get::<_, bool>(0) {
                let mut transaction = client.transaction()?;
                // Two transactions that create the same table at once would both fail.
                transaction
                    .batch_execute("LOCK TABLE retake.settings IN SHARE ROW EXCLUSIVE MODE")?;
                transaction
                    .execute("SELECT retake.add_month($1::text::date)", &[&month.to_string()])?;
                transaction.commit()?;
            }
            self.there.insert(month);
        }
        Ok(())
    }
}

/// The first day of an id's month; `None` for an id without a plausible time.
fn month_of(id: RunId, now: Timestamp) -> Option<Date> {
    let text = id.to_string().replace('-', "");
    if text.as_bytes().get(12) != Some(&b'7') {
        return None;
    }
    let milliseconds = i64::from_str_radix(&text[..12], 16).ok()?;
    let time = Timestamp::from_millisecond(milliseconds).ok()?;
    let latest = now.checked_add(Span::new().hours(24 * 31)).ok()?;
    let date = time.to_zoned(TimeZone::UTC).date();
    (date.year() >= 2020 && time <= latest).then(|| date.first_of_month())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_month_is_in_the_id() {
        let now: Timestamp = "2026-11-17T00:00:00Z".parse().unwrap();
        let month = |text: &str| month_of(text.parse().unwrap(), now).map(|date| date.to_string());
        // 2025-01-31T23:59:59.999Z and a millisecond later.
        let last = "2025-01-31T23:59:59.999Z".parse::<Timestamp>().unwrap().as_millisecond();
        let id = |ms: i64| {
            let hex = format!("{ms:012x}");
            format!("{}-{}-7000-8000-000000000001", &hex[..8], &hex[8..])
        };
        assert_eq!(month(&id(last)).as_deref(), Some("2025-01-01"));
        assert_eq!(month(&id(last + 1)).as_deref(), Some("2025-02-01"));
        // Another kind of id, an impossible time, a wrong clock.
        assert_eq!(month("6fa459ea-ee8a-4ca4-894e-db77e160355e"), None);
        assert_eq!(month("00000000-0000-7000-8000-000000000001"), None);
        assert_eq!(month(&id(last + (1 << 42))), None);
    }
}
