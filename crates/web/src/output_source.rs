//! Selects an output of a run.

use retake_types::Stream;
use serde::{Serialize, Serializer};

use crate::error::RequestError;
use crate::params::Params;

/// An output of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputSource {
    One(Stream),
    /// Both streams in order of arrival.
    Interleaved,
}

impl OutputSource {
    pub(crate) fn from_params(params: &Params) -> Result<Self, RequestError> {
        match params.get("stream") {
            None | Some("stdout") => Ok(Self::One(Stream::Stdout)),
            Some("stderr") => Ok(Self::One(Stream::Stderr)),
            Some("merged") => Ok(Self::Interleaved),
            Some(other) => Err(RequestError::bad_request(format!(
                "stream={other} is not one of stdout, stderr, merged"
            ))),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::One(stream) => stream.as_str(),
            Self::Interleaved => "merged",
        }
    }
}

impl Serialize for OutputSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
