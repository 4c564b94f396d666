//! The server: its listener and its routes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use tokio::net::TcpListener;

use crate::app::App;
use crate::connections::{Connection, Connections};
use crate::error::RequestError;
use crate::figures::{Figures, TimeRange};
use crate::page::PageError;
use crate::projects::Apps;
use crate::test_summary::TestSummaries;
use crate::{api, authorization, page};

/// Threads for queries, and one more for long ones.
const BLOCKING_THREADS: usize = 10;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on 127.0.0.1:{port}: {source}")]
    Listen { port: u16, source: io::Error },
    #[error("the server could not be started: {0}")]
    Start(io::Error),
}

/// Listens before it serves, so that the address is known.
pub struct Server {
    listener: std::net::TcpListener,
    port: u16,
}

impl Server {
    /// On loopback only.
    pub fn bind(port: u16) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { port, source };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        Ok(Self { listener, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Serves until the program ends.
    pub fn serve(self, app: App) -> Result<(), ServerError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_keep_alive(Duration::from_secs(60))
            .build()
            .map_err(ServerError::Start)?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(self.listener).map_err(ServerError::Start)?;
            let listener = Connections::new(listener);
            let apps = Arc::new(Apps::new(app));
            tokio::spawn(warm_cache(apps.whole().clone()));
            let service = router(apps).into_make_service_with_connect_info::<Connection>();
            axum::serve(listener, service).await.map_err(ServerError::Start)
        })
    }
}

/// Counts the figures of the overview in advance, so that its first visitor does not wait.
async fn warm_cache(app: Arc<App>) {
    // The first visitor gets the same error.
    drop(app.figures.get(&app.store, TimeRange::Week, Figures::count).await);
    drop(app.tests.get(&app.store, (), TestSummaries::count).await);
}

fn router(apps: Arc<Apps>) -> Router {
    Router::new()
        .route("/", get(page::overview))
        .route("/runs", get(page::runs))
        .route("/runs/{id}", get(page::run))
        .route("/runs/{id}/raw", get(page::raw))
        .route("/compare", get(page::compare))
        .route("/tests", get(page::tests))
        .route("/test", get(page::test))
        .route("/loops", get(page::loops))
        .route("/loops/{id}", get(page::one_loop))
        .route("/loops/{id}/agents/{name}", get(page::fleet_agent))
        .route("/assets/{name}", get(page::asset))
        .route("/api/v1/overview", get(api::overview))
        .route("/api/v1/runs", get(api::runs))
        .route("/api/v1/runs/{id}", get(api::run))
        .route("/api/v1/runs/{id}/again", post(api::again))
        .route("/api/v1/runs/{id}/logs", get(api::logs))
        .route("/api/v1/runs/{id}/find", get(api::find))
        .route("/api/v1/runs/{id}/count", get(api::count))
        .route("/api/v1/runs/{id}/line", get(api::line))
        .route("/api/v1/runs/{id}/events", get(api::run_events))
        .route("/api/v1/loops", get(api::loops))
        .route("/api/v1/loops/{id}", get(api::one_loop))
        .route("/api/v1/loops/{id}/events", get(api::loop_events))
        .route("/api/v1/loops/{id}/actions", post(api::act))
        .route("/api/v1/loops/{id}/agents/{name}/apply", post(api::apply))
        .route("/api/v1/projects", get(api::projects))
        .route("/api/v1/tests", get(api::tests))
        .route("/api/v1/search", get(api::search))
        .route("/api/v1/audit", get(api::audit).post(api::verify))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .layer(axum::extract::DefaultBodyLimit::max(api::MAX_BODY))
        .layer(middleware::from_fn_with_state(apps.clone(), authorization::authorize))
        .with_state(apps)
}

async fn not_found(request: Request) -> Response {
    let error = RequestError::not_found(format!(
        "there is nothing to {} at {}",
        request.method().as_str().to_ascii_lowercase(),
        request.uri().path()
    ));
    match request.uri().path().starts_with("/api/") {
        true => error.as_json(),
        false => PageError::from(error).into_response(),
    }
}
