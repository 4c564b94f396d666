//! Counts over the whole record. A million runs take a second to count, so results are cached and renewed
//! in the background. The first request, or the first one after a long time, waits for the count, so a
//! result is never older than the limits below.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::RequestError;
use crate::store_pool::{Store, StorePool};

/// A result is renewed if it is older than this and older than the count's duration times a factor.
const FRESH: Duration = Duration::from_secs(1);
const RATIO: u32 = 20;
/// A request waits for a count that takes at most this long. It waits for a slower one only if the cached
/// result is so old that it would mislead.
const SOON: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(3);

/// The function that counts.
type Count<K, V> = fn(&Store, K) -> Result<V, RequestError>;

struct Cached<V> {
    counted: Arc<V>,
    at: Instant,
    took: Duration,
    counting: bool,
}

/// How long to wait for a new count; `None` while the cached result is recent enough.
fn wait(age: Duration, took: Duration) -> Option<Duration> {
    let good_for = FRESH.max(took * RATIO);
    match age {
        age if age <= good_for => None,
        _ if took <= SOON => Some(SOON * 4),
        age if age > good_for * 2 => Some(PATIENCE),
        _ => Some(Duration::ZERO),
    }
}

pub(crate) struct CountCache<K, V> {
    known: Arc<Mutex<HashMap<K, Cached<V>>>>,
    /// Notified at the end of every count.
    done: tokio::sync::watch::Sender<()>,
    /// Held during the first count, so that many tabs do not start one each.
    first: tokio::sync::Mutex<()>,
}

impl<K, V> Default for CountCache<K, V> {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            done: tokio::sync::watch::Sender::new(()),
            first: tokio::sync::Mutex::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, V> CountCache<K, V>
where
    K: Copy + Eq + Hash + Send + 'static,
    V: Send + Sync + 'static,
{
    pub(crate) async fn get(
        &self,
        store: &StorePool,
        key: K,
        count: Count<K, V>,
    ) -> Result<Arc<V>, RequestError> {
        if let Some(counted) = self.renewed(store, key, count).await {
            return Ok(counted);
        }
        let _first = self.first.lock().await;
        if let Some(counted) = self.renewed(store, key, count).await {
            return Ok(counted);
        }
        count_now(store, key, count, &self.known).await
    }

    /// The cached result, after waiting for a newer one if that is worthwhile.
    async fn renewed(&self, store: &StorePool, key: K, count: Count<K, V>) -> Option<Arc<V>> {
        // Subscribed first, so that the end of a count cannot be missed.
        let mut done = self.done.subscribe();
        let wait = self.renew(store, key, count)?;
        let counting = || lock(&self.known).get(&key).is_some_and(|known| known.counting);
        let counted = async { while counting() && done.changed().await.is_ok() {} };
        if !wait.is_zero() {
            // A count that is not ready in time serves the next request.
            drop(tokio::time::timeout(wait, counted).await);
        }
        lock(&self.known).get(&key).map(|known| known.counted.clone())
    }

    /// Starts a new count if the cached one is too old, and returns how long to wait for it.
    fn renew(&self, store: &StorePool, key: K, count: Count<K, V>) -> Option<Duration> {
        let mut all = lock(&self.known);
        let known = all.get_mut(&key)?;
        let Some(wait) = wait(known.at.elapsed(), known.took) else { return Some(Duration::ZERO) };
        if !known.counting {
            known.counting = true;
            let (store, all) = (store.clone(), self.known.clone());
            let done = self.done.clone();
            tokio::spawn(async move {
                // The next request gets the same error; until then the old result stays.
                if count_now(&store, key, count, &all).await.is_err()
                    && let Some(known) = lock(&all).get_mut(&key)
                {
                    known.counting = false;
                }
                done.send_replace(());
            });
        }
        Some(wait)
    }
}

async fn count_now<K, V>(
    store: &StorePool,
    key: K,
    count: Count<K, V>,
    known: &Mutex<HashMap<K, Cached<V>>>,
) -> Result<Arc<V>, RequestError>
where
    K: Copy + Eq + Hash + Send + 'static,
    V: Send + Sync + 'static,
{
    let begun = Instant::now();
    let counted = Arc::new(store.read(move |store| count(store, key)).await?);
    let (at, took) = (Instant::now(), begun.elapsed());
    lock(known).insert(key, Cached { counted: counted.clone(), at, took, counting: false });
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_as_fresh_as_counting_is_cheap() {
        let ms = Duration::from_millis;
        let quick = ms(5);
        assert_eq!(wait(ms(900), quick), None);
        assert!(wait(ms(1100), quick).is_some_and(|wait| wait >= quick * 2));
        // A million runs: while requests keep coming none waits, but the first one after a night does.
        let slow = ms(1000);
        assert_eq!(wait(ms(19_000), slow), None);
        assert_eq!(wait(ms(21_000), slow), Some(Duration::ZERO));
        assert!(wait(ms(41_000), slow).is_some_and(|wait| wait >= slow * 2));
    }
}
