//! The project of a shared record that a request is about. The record of this machine has no projects;
//! there, every request is about all of it.
//!
//! `?project=NAME` in any address chooses a project, and `?project=` all of them; a browser remembers the choice
//! in a cookie, so that every page, and every request of its script, is about the same project. Each project
//! has its own caches, so counts of one are never shown for another.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::header::{COOKIE, HeaderValue};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};

use crate::app::App;
use crate::params::{Params, address_of, decoded, encoded};
use crate::shared_scope::SharedScope;

const PARAM: &str = "project";
/// How long the list of projects is cached.
const FRESH: Duration = Duration::from_secs(10);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shared state, by project.
pub(crate) struct Apps {
    /// For the whole record.
    whole: Arc<App>,
    read: Mutex<Option<Instant>>,
    of_projects: Mutex<HashMap<String, Arc<App>>>,
}

impl Apps {
    pub(crate) fn new(app: App) -> Self {
        Self { whole: Arc::new(app), read: Mutex::default(), of_projects: Mutex::default() }
    }

    /// For requests that do not depend on a project.
    pub(crate) fn whole(&self) -> &Arc<App> {
        &self.whole
    }

    /// The existing projects, at most a few seconds old.
    async fn names(&self, scope: &SharedScope) -> Vec<String> {
        if !lock(&self.read).is_some_and(|at| at.elapsed() < FRESH) {
            // The page itself reports a database that cannot be read.
            if let Ok(names) = self.whole.store.read(|store| Ok(store.projects()?)).await {
                lock(&self.of_projects).retain(|name, _| names.contains(name));
                scope.set_names(names);
                *lock(&self.read) = Some(Instant::now());
            }
        }
        scope.names()
    }

    async fn app_of(&self, uri: &Uri, headers: &HeaderMap) -> Arc<App> {
        let Some(scope) = &self.whole.shared else { return self.whole.clone() };
        let names = self.names(scope).await;
        let chosen = match asked(uri).or_else(|| remembered(headers, self.whole.port)) {
            Some(name) => Some(name).filter(|name| !name.is_empty()),
            // A single project needs no choice.
            None => names.first().filter(|_| names.len() == 1).cloned(),
        };
        let Some(name) = chosen else { return self.whole.clone() };
        let mut apps = lock(&self.of_projects);
        if let Some(app) = apps.get(&name) {
            return app.clone();
        }
        let app = Arc::new(self.whole.for_project(scope, &name));
        // No state is kept for an unknown or former name.
        if names.contains(&name) {
            apps.insert(name, app.clone());
        }
        app
    }
}

/// The project in the address.
fn asked(uri: &Uri) -> Option<String> {
    let pair = |pair: &str| match pair.split_once('=').unwrap_or((pair, "")) {
        (PARAM, value) => Some(decoded(value)),
        _ => None,
    };
    uri.query()?.split('&').find_map(pair)
}

/// Cookies ignore ports, so the name contains it.
fn cookie_name(port: u16) -> String {
    format!("retake-project-{port}")
}

fn remembered(headers: &HeaderMap, port: u16) -> Option<String> {
    let name = cookie_name(port);
    let lines = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        lines.flat_map(|line| line.split(';')).filter_map(|one| one.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| decoded(value))
}

/// The cookie that remembers the project in a page's address.
pub(crate) fn choice_to_remember(app: &App, uri: &Uri) -> Option<HeaderValue> {
    if app.shared.is_none() || uri.path().starts_with("/api/") {
        return None;
    }
    let name = encoded(&asked(uri)?);
    let cookie = format!("{}={name}; Path=/; HttpOnly; SameSite=Strict", cookie_name(app.port));
    HeaderValue::from_str(&cookie).ok()
}

/// The address without the project, which is not a filter of a list.
fn without_project(uri: &Uri) -> Uri {
    let pairs: Vec<(String, String)> = Params::from_uri(uri)
        .pairs()
        .filter(|(name, _)| *name != PARAM)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let pairs: Vec<(&str, &str)> =
        pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // Removing a part of the query keeps an address valid.
    address_of(uri.path(), &pairs).parse().unwrap_or_else(|_| uri.clone())
}

/// The state for the project of a request. As the first argument of a handler it also removes the project from
/// the address that later arguments read.
pub(crate) struct State<T>(pub(crate) T);

impl FromRequestParts<Arc<Apps>> for State<Arc<App>> {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, apps: &Arc<Apps>) -> Result<Self, Infallible> {
        let app = apps.app_of(&parts.uri, &parts.headers).await;
        if app.shared.is_some() && asked(&parts.uri).is_some() {
            parts.uri = without_project(&parts.uri);
        }
        Ok(Self(app))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_named_by_the_address_or_remembered() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        assert_eq!(asked(&uri("/runs?kind=exec&project=a%2Fb%20c")).as_deref(), Some("a/b c"));
        assert_eq!(asked(&uri("/runs?project=")).as_deref(), Some(""));
        assert_eq!(asked(&uri("/runs?projects=x")), None);
        assert_eq!(without_project(&uri("/runs?kind=exec&project=x")), uri("/runs?kind=exec"));
        let mut headers = HeaderMap::new();
        let cookie = "retake-1=x; retake-project-7=a%2Fb; retake-project-8=other";
        headers.insert(COOKIE, HeaderValue::from_static(cookie));
        assert_eq!(remembered(&headers, 7).as_deref(), Some("a/b"));
        assert_eq!(remembered(&headers, 9), None);
    }
}
