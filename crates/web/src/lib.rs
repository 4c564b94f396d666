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
mod find;
mod guard;
mod html;
mod keys;
mod live;
mod log;
mod loops;
mod page;
mod params;
mod reader;
mod server;
mod survey;
mod trouble;

use std::path::PathBuf;
use std::sync::Arc;

use retake_agent::workspace::Places;

pub use keys::Keys;
pub use server::{Server, ServerError};

use reader::Reader;
use survey::Survey;

/// What every request can use.
pub struct App {
    reader: Reader,
    keys: Keys,
    port: u16,
    /// Where loops of agents are steered; `None` where the configuration does not say.
    places: Option<Places>,
    survey: Survey,
    streams: Arc<tokio::sync::Semaphore>,
}

/// More live pages than anyone looks at; each costs a connection and a look now and then.
const MOST_STREAMS: usize = 64;

impl App {
    pub fn new(store: PathBuf, keys: Keys, port: u16, places: Option<Places>) -> Self {
        Self {
            reader: Reader::new(store),
            keys,
            port,
            places,
            survey: Survey::default(),
            streams: Arc::new(tokio::sync::Semaphore::new(MOST_STREAMS)),
        }
    }
}
