//! Figures over the whole record, for the overview. A million runs take a second to count, so the
//! figures are cached and counted again in the background. The first request, or the first after a
//! long time, waits for the count, so figures are never older than the limits below.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use retake_store::{DiskUse, Head, Store, TimeSlice, Totals};

use crate::error::RequestError;
use crate::store_pool::StorePool;

/// Bars of a chart.
pub(crate) const SLICES: usize = 48;
/// Figures are counted again when they are this old, and this many times older than the count took.
const FRESH: Duration = Duration::from_secs(1);
const RATIO: u32 = 20;
/// A request waits for a count that is this quick. It waits for a slower one only if the cached
/// figures are so old that they would mislead.
const SOON: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(3);

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
pub(crate) struct Figures {
    pub(crate) range: TimeRange,
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) slices: Vec<TimeSlice>,
    pub(crate) totals: Totals,
    pub(crate) disk: DiskUse,
    pub(crate) head: Head,
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

struct CachedFigures {
    figures: Arc<Figures>,
    at: Instant,
    took: Duration,
    counting: bool,
}

/// How long to wait for a new count: `None` while the last is good enough.
fn wait(age: Duration, took: Duration) -> Option<Duration> {
    let good_for = FRESH.max(took * RATIO);
    match age {
        age if age <= good_for => None,
        _ if took <= SOON => Some(SOON * 4),
        age if age > good_for * 2 => Some(PATIENCE),
        _ => Some(Duration::ZERO),
    }
}

pub(crate) struct FiguresCache {
    counted: Arc<Mutex<HashMap<TimeRange, CachedFigures>>>,
    /// Notified at the end of every count.
    done: tokio::sync::watch::Sender<()>,
    /// Held during the first count, so that twenty tabs do not start twenty.
    first: tokio::sync::Mutex<()>,
}

impl Default for FiguresCache {
    fn default() -> Self {
        Self {
            counted: Arc::default(),
            done: tokio::sync::watch::Sender::new(()),
            first: tokio::sync::Mutex::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FiguresCache {
    pub(crate) async fn get(
        &self,
        store: &StorePool,
        range: TimeRange,
    ) -> Result<Arc<Figures>, RequestError> {
        if let Some(figures) = self.renewed(store, range).await {
            return Ok(figures);
        }
        let _first = self.first.lock().await;
        if let Some(figures) = self.renewed(store, range).await {
            return Ok(figures);
        }
        count(store, range, &self.counted).await
    }

    /// The cached figures, after a wait for newer ones where that is worth it.
    async fn renewed(&self, store: &StorePool, range: TimeRange) -> Option<Arc<Figures>> {
        // From here on no end of a count is missed.
        let mut done = self.done.subscribe();
        let wait = self.renew(store, range)?;
        let counting = || lock(&self.counted).get(&range).is_some_and(|counted| counted.counting);
        let counted = async { while counting() && done.changed().await.is_ok() {} };
        if !wait.is_zero() {
            // A count that is not ready in time serves the next request.
            drop(tokio::time::timeout(wait, counted).await);
        }
        lock(&self.counted).get(&range).map(|counted| counted.figures.clone())
    }

    /// Starts a new count if the last is too old, and returns how long to wait for it.
    fn renew(&self, store: &StorePool, range: TimeRange) -> Option<Duration> {
        let mut counted = lock(&self.counted);
        let known = counted.get_mut(&range)?;
        let Some(wait) = wait(known.at.elapsed(), known.took) else { return Some(Duration::ZERO) };
        if !known.counting {
            known.counting = true;
            let (store, counted) = (store.clone(), self.counted.clone());
            let done = self.done.clone();
            tokio::spawn(async move {
                // The next request meets the same error; until then the old figures stay.
                if count(&store, range, &counted).await.is_err()
                    && let Some(known) = lock(&counted).get_mut(&range)
                {
                    known.counting = false;
                }
                done.send_replace(());
            });
        }
        Some(wait)
    }
}

async fn count(
    store: &StorePool,
    range: TimeRange,
    counted: &Mutex<HashMap<TimeRange, CachedFigures>>,
) -> Result<Arc<Figures>, RequestError> {
    let begun = Instant::now();
    let figures = Arc::new(store.read(move |store| Figures::count(store, range)).await?);
    let entry = CachedFigures {
        figures: figures.clone(),
        at: Instant::now(),
        took: begun.elapsed(),
        counting: false,
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
