//! Figures over the whole record, for the overview.

use jiff::{SignedDuration, Timestamp};
use retake_store::{DiskUse, Head, TimeSlice, Totals};
use retake_types::Run;

use crate::count_cache::CountCache;
use crate::error::RequestError;
use crate::store_pool::Store;

/// Number of bars in a chart.
pub(crate) const SLICES: usize = 48;

/// How many commands are listed as slow.
const SLOWEST: usize = 5;

/// How far back the charts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TimeRange {
    Day,
    Week,
    Month,
    All,
}

impl TimeRange {
    pub(crate) const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::All];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Day => "24h",
            Self::Week => "7d",
            Self::Month => "30d",
            Self::All => "all",
        }
    }

    pub(crate) fn parse(text: Option<&str>) -> Result<Self, RequestError> {
        let Some(text) = text else { return Ok(Self::Week) };
        Self::ALL.into_iter().find(|range| range.as_str() == text).ok_or_else(|| {
            RequestError::bad_request(format!("range={text} is not one of 24h, 7d, 30d, all"))
        })
    }

    fn hours(self) -> Option<i64> {
        match self {
            Self::Day => Some(24),
            Self::Week => Some(7 * 24),
            Self::Month => Some(30 * 24),
            Self::All => None,
        }
    }
}

/// The results of counting.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) range: TimeRange,
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) slices: Vec<TimeSlice>,
    pub(crate) totals: Totals,
    /// `None` for a shared record, which is not on this machine.
    pub(crate) disk: Option<DiskUse>,
    pub(crate) head: Option<Head>,
    /// The slowest run of each of the slowest commands within the range, the slowest first.
    pub(crate) slowest: Vec<Run>,
}

impl Figures {
    pub(crate) fn count(store: &Store, range: TimeRange) -> Result<Self, RequestError> {
        let now = Timestamp::now();
        let totals = store.totals()?;
        let since = match range.hours() {
            Some(hours) => now - SignedDuration::from_hours(hours),
            None => totals.first.unwrap_or(now - SignedDuration::from_hours(1)),
        };
        // A run that begins at this very moment belongs to the last slice.
        let until = now + SignedDuration::from_secs(1);
        Ok(Self {
            range,
            since,
            until,
            slices: store.timeline(since, until, SLICES)?,
            totals,
            disk: store.as_store().map(retake_store::Store::disk_use),
            head: store.as_store().map(retake_store::Store::head).transpose()?,
            slowest: store.slowest_commands(since, SLOWEST)?,
        })
    }
}

pub(crate) type FiguresCache = CountCache<TimeRange, Figures>;
