//! The messages of a child to its orchestrator, over a pipe that only these two hold.
//!
//! Exit codes and output can come from anywhere (a library, the kernel, a test framework). Messages
//! over this pipe come from this crate, in this child, which is why only an announced crash
//! counts as one.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The child has reached its `first::test()`.
    Hello,
    /// A crash point was reached, by the workload's own thread or by another one.
    Point { own_thread: bool, label: String },
    /// The workload promised something.
    Promise { said: Vec<u8> },
    /// The process is about to kill itself at this point.
    Crash { point_id: usize },
    /// The workload returned; `filtered` points were not counted because of their labels.
    Ended { filtered: usize },
    /// The check returned; whether it looked at its [`CrashInfo`](crate::CrashInfo).
    Passed { looked: bool },
    /// The closure panicked.
    Panicked { text: String },
    /// A forked copy of the process reached a crash point.
    Forked { label: String },
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello => (b'H', Vec::new()),
            Self::Point { own_thread, label } => {
                (b'P', [&[u8::from(*own_thread)], label.as_bytes()].concat())
            }
            Self::Promise { said } => (b'A', said.clone()),
            Self::Crash { point_id } => (b'C', (*point_id as u64).to_le_bytes().to_vec()),
            Self::Ended { filtered } => (b'E', (*filtered as u64).to_le_bytes().to_vec()),
            Self::Passed { looked } => (b'V', vec![u8::from(*looked)]),
            Self::Panicked { text } => (b'X', text.clone().into_bytes()),
            Self::Forked { label } => (b'F', label.clone().into_bytes()),
        };
        let mut frame = Vec::with_capacity(body.len() + 5);
        frame.push(kind);
        // A label or panic message of 4 GiB does not fit into a process that can send it.
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        frame
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let number = || Some(u64::from_le_bytes(body.try_into().ok()?) as usize);
        Some(match kind {
            b'H' => Self::Hello,
            b'P' => {
                let (own, label) = body.split_first()?;
                Self::Point { own_thread: *own != 0, label: text(label) }
            }
            b'A' => Self::Promise { said: body.to_vec() },
            b'C' => Self::Crash { point_id: number()? },
            b'E' => Self::Ended { filtered: number()? },
            b'V' => Self::Passed { looked: body.first()? != &0 },
            b'X' => Self::Panicked { text: text(body) },
            b'F' => Self::Forked { label: text(body) },
            _ => return None,
        })
    }
}

/// Puts messages together from the bytes as they arrive.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    pub(crate) messages: Vec<Message>,
    /// Something else wrote into the pipe; what follows cannot be trusted.
    pub(crate) garbled: bool,
}

impl Inbox {
    /// Parses everything that a child announced.
    pub(crate) fn of(announced: &[u8]) -> Self {
        let mut inbox = Self::default();
        inbox.push(announced);
        inbox
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((&[kind, a, b, c, d], rest)) = self.bytes[at..].split_first_chunk() {
            let Some(body) = rest.get(..u32::from_le_bytes([a, b, c, d]) as usize) else { break };
            match Message::decode(kind, body) {
                Some(message) => self.messages.push(message),
                None => self.garbled = true,
            }
            at += 5 + body.len();
        }
        self.bytes.drain(..at);
    }
}

/// The child's end.
#[derive(Debug)]
pub(crate) struct Announcer {
    pipe: File,
    turn: Mutex<()>,
}

impl Announcer {
    pub(crate) fn new(pipe: File) -> Self {
        Self { pipe, turn: Mutex::new(()) }
    }

    /// Sends whole messages: those of several threads do not mix.
    pub(crate) fn send(&self, message: &Message) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        (&self.pipe).write_all(&message.encode())
    }

    /// Reports that this is a forked copy. A lock that another thread held would never be released in the copy, so
    /// none is taken; the message is cut to the size that the kernel writes atomically.
    pub(crate) fn forked(&self, label: &str) -> io::Result<()> {
        let label = label.chars().take(500).collect();
        (&self.pipe).write_all(&Message::Forked { label }.encode())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            Just(Message::Hello),
            (any::<bool>(), any::<String>())
                .prop_map(|(own_thread, label)| Message::Point { own_thread, label }),
            any::<Vec<u8>>().prop_map(|said| Message::Promise { said }),
            any::<usize>().prop_map(|point_id| Message::Crash { point_id }),
            any::<usize>().prop_map(|filtered| Message::Ended { filtered }),
            any::<bool>().prop_map(|looked| Message::Passed { looked }),
            any::<String>().prop_map(|text| Message::Panicked { text }),
            any::<String>().prop_map(|label| Message::Forked { label }),
        ]
    }

    proptest! {
        #[test]
        fn messages_arrive_however_they_are_cut(
            sent in prop::collection::vec(message(), 0..6),
            cut in 1usize..20,
        ) {
            let bytes: Vec<u8> = sent.iter().flat_map(Message::encode).collect();
            let mut inbox = Inbox::default();
            bytes.chunks(cut).for_each(|chunk| inbox.push(chunk));
            prop_assert_eq!(inbox.messages, sent);
            prop_assert!(!inbox.garbled && inbox.bytes.is_empty());
        }
    }

    #[test]
    fn foreign_bytes_are_noticed() {
        let mut inbox = Inbox::default();
        inbox.push(b"h\x02\0\0\0lo");
        assert!(inbox.garbled && inbox.messages.is_empty());
    }
}
