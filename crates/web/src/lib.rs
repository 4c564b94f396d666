//! The local web page over the record: pages for people, JSON under `/api/v1` for programs.
//!
//! Everything is rendered here; a page works without its script. The record is only ever read,
//! each time in a short look on a blocking thread whose answer is complete before the first byte
//! goes out, so that no slow reader holds a snapshot. What steers a loop goes through the loop's
//! own mailbox. Nothing here prints, and no request goes anywhere else.

mod ansi;
mod api;
mod assets;
mod chart;
mod connections;
mod output_search;
mod authorization;
mod access_token;
mod live;
mod output_window;
mod loops;
mod page;
mod params;
mod store_pool;
mod server;
mod figures;
mod error;

use std::path::PathBuf;
use std::sync::Arc;

use retake_agent::workspace::Places;

pub use access_token::AccessTokens;
pub use server::{Server, ServerError};

use store_pool::StorePool;
use figures::FiguresCache;

/// What every request can use.
pub struct App {
    reader: Reader,
    keys: AccessTokens,
    port: u16,
    /// Where loops of agents are steered; `None` where the configuration does not say.
    workspaces: Option<Places>,
    survey: FiguresCache,
    streams: Arc<tokio::sync::Semaphore>,
}

/// More live pages than anyone looks at; each costs a connection and a look now and then.
const MOST_STREAMS: usize = 64;

impl App {
    pub fn new(store: PathBuf, keys: AccessTokens, port: u16, workspaces: Option<Places>) -> Self {
        Self {
            reader: Reader::new(store),
            keys,
            port,
            workspaces,
            survey: FiguresCache::default(),
            streams: Arc::new(tokio::sync::Semaphore::new(MOST_STREAMS)),
        }
    }
}
