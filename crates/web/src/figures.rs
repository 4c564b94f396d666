//! Figures over the whole record, for the overview. A million runs take a second to count, so they
//! are counted once and shown until a new count is there. Who comes first, or first after a long
//! time, waits for it; so figures are never older than what is promised here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use retake_store::{DiskUse, Head, Store, TimeSlice, Totals, Verification};

use super::store_pool::StorePool;
use super::error::RequestError;

/// Bars of a chart.
pub(super) const SLICES: usize = 48;
/// Figures are counted anew when they are this old, and this many times as old as the count took.
const FRESH: Duration = Duration::from_secs(1);
const RATIO: u32 = 20;
/// A count that is soon there is waited for. One that takes longer is waited for where nobody has
/// asked for so long that the old figures would mislead.
const SOON: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(3);

/// How far back the charts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TimeRange {
    Day,
    Week,
    Month,
    All,
}

impl TimeRange {
    pub(super) const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::All];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Day => "24h",
            Self::Week => "7d",
            Self::Month => "30d",
            Self::All => "all",
        }
    }

    pub(super) fn of(text: Option<&str>) -> Result<Self, RequestError> {
        let Some(text) = text else { return Ok(Self::Week) };
        Self::ALL.into_iter().find(|range| range.as_str() == text).ok_or_else(|| {
            RequestError::bad_request(format!("range={text} is none of 24h, 7d, 30d, all"))
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

/// What was counted.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) range: TimeRange,
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
    pub(super) slices: Vec<TimeSlice>,
    pub(super) totals: Totals,
    pub(super) disk: DiskUse,
    pub(super) head: Head,
}

impl Figures {
    fn count(store: &Store, range: TimeRange) -> Result<Self, RequestError> {
        let now = Timestamp::now();
        let totals = store.totals()?;
        let since = match range.hours() {
            Some(hours) => now - SignedDuration::from_hours(hours),
            None => totals.first.unwrap_or(now - SignedDuration::from_hours(1)),
        };
        // What began in this very moment belongs to the last slice.
        let until = now + SignedDuration::from_secs(1);
        Ok(Self {
            range,
            since,
            until,
            slices: store.timeline(since, until, SLICES)?,
            totals,
            disk: store.disk_use(),
            head: store.head()?,
        })
    }
}

struct Counted {
    figures: Arc<Figures>,
    at: Instant,
    took: Duration,
    under_way: bool,
}

/// How long a new count is waited for: `None` while the last is good enough.
fn wait(age: Duration, took: Duration) -> Option<Duration> {
    let good_for = FRESH.max(took * RATIO);
    match age {
        age if age <= good_for => None,
        _ if took <= SOON => Some(SOON * 4),
        age if age > good_for * 2 => Some(PATIENCE),
        _ => Some(Duration::ZERO),
    }
}

/// What the last verification of the chain found.
#[derive(Clone, Debug)]
pub(super) enum Audit {
    NotYet,
    UnderWay { since: Timestamp },
    Done { at: Timestamp, found: Verification },
    Failed { at: Timestamp, why: String },
}

pub(super) struct FiguresCache {
    counted: Arc<Mutex<HashMap<TimeRange, Counted>>>,
    /// Told when a count is done.
    done: tokio::sync::watch::Sender<()>,
    /// CountedStream by whoever makes the first count, so that twenty tabs do not make twenty.
    first: tokio::sync::Mutex<()>,
    audit: Arc<Mutex<Audit>>,
}

impl Default for FiguresCache {
    fn default() -> Self {
        Self {
            counted: Arc::default(),
            done: tokio::sync::watch::Sender::new(()),
            first: tokio::sync::Mutex::default(),
            audit: Arc::new(Mutex::new(Audit::NotYet)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FiguresCache {
    pub(super) async fn figures(
        &self,
        reader: &Reader,
        range: TimeRange,
    ) -> Result<Arc<Figures>, RequestError> {
        if let Some(figures) = self.renewed(reader, range).await {
            return Ok(figures);
        }
        let _first = self.first.lock().await;
        if let Some(figures) = self.renewed(reader, range).await {
            return Ok(figures);
        }
        count(reader, range, &self.counted).await
    }

    /// What is known, after a wait for something newer where that is worth it.
    async fn renewed(&self, reader: &Reader, range: TimeRange) -> Option<Arc<Figures>> {
        // From here on no end of a count is missed.
        let mut done = self.done.subscribe();
        let wait = self.renew(reader, range)?;
        let counting =
            || lock(&self.counted).get(&range).is_some_and(|counted| counted.under_way);
        let counted = async { while counting() && done.changed().await.is_ok() {} };
        if !wait.is_zero() {
            // What is not there in time is there for whoever asks next.
            drop(tokio::time::timeout(wait, counted).await);
        }
        lock(&self.counted).get(&range).map(|counted| counted.figures.clone())
    }

    /// Begins a new count if the last is too old, and says how long to wait for it.
    fn renew(&self, reader: &Reader, range: TimeRange) -> Option<Duration> {
        let mut counted = lock(&self.counted);
        let known = counted.get_mut(&range)?;
        let Some(wait) = wait(known.at.elapsed(), known.took) else { return Some(Duration::ZERO) };
        if !known.under_way {
            known.under_way = true;
            let (reader, counted) = (reader.clone(), self.counted.clone());
            let done = self.done.clone();
            tokio::spawn(async move {
                // What went wrong goes wrong again for whoever asks next; the old count stays.
                if count(&reader, range, &counted).await.is_err()
                    && let Some(known) = lock(&counted).get_mut(&range)
                {
                    known.under_way = false;
                }
                done.send_replace(());
            });
        }
        Some(wait)
    }

    pub(super) fn audit(&self) -> Audit {
        lock(&self.audit).clone()
    }

    /// Begins to verify the chain, unless someone does already.
    pub(super) fn verify(&self, reader: &Reader) {
        let mut audit = lock(&self.audit);
        if matches!(*audit, Audit::UnderWay { .. }) {
            return;
        }
        *audit = Audit::UnderWay { since: Timestamp::now() };
        let (reader, result) = (reader.clone(), self.audit.clone());
        tokio::spawn(async move {
            let found = reader.read_large(|store| Ok(store.verify(None)?)).await;
            let at = Timestamp::now();
            *lock(&result) = match found {
                Ok(found) => Audit::Done { at, found },
                Err(error) => Audit::Failed { at, why: error.to_string() },
            };
        });
    }
}

async fn count(
    reader: &Reader,
    range: TimeRange,
    counted: &Mutex<HashMap<TimeRange, Counted>>,
) -> Result<Arc<Figures>, RequestError> {
    let begun = Instant::now();
    let figures = Arc::new(reader.read(move |store| Figures::count(store, range)).await?);
    let entry = Counted {
        figures: figures.clone(),
        at: Instant::now(),
        took: begun.elapsed(),
        under_way: false,
    };
    lock(counted).insert(range, entry);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_fresh_as_counting_is_cheap() {
        let ms = Duration::from_millis;
        let quick = ms(5);
        assert_eq!(wait(ms(900), quick), None);
        assert!(wait(ms(1100), quick).is_some_and(|wait| wait >= quick * 2));
        // A million runs: nobody waits while others ask, and the first after a night does.
        let slow = ms(1000);
        assert_eq!(wait(ms(19_000), slow), None);
        assert_eq!(wait(ms(21_000), slow), Some(Duration::ZERO));
        assert!(wait(ms(41_000), slow).is_some_and(|wait| wait >= slow * 2));
    }
}
