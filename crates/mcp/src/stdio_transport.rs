//! Messages on stdin and stdout, one JSON object per line.
//!
//! The SDK's own transport drops lines that it cannot read, and a client that waits for an answer then
//! waits forever. This one answers: a line that is not JSON, not a message, or too long gets a protocol
//! error, with the id of the request if one can be found. It writes only
//! messages.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequest, CallToolRequestMethod, CallToolRequestParams, ClientJsonRpcMessage,
    ClientRequest, ErrorCode, ErrorData, JsonRpcVersion2_0, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::Transport;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Mutex;

/// A longer message is refused. Arguments of a command take at most 6 MiB.
const LONGEST: usize = 16 << 20;
/// How much of a message that is too long is searched for its id.
const GLIMPSE: usize = 4 << 10;
/// Maximum number of messages in one line.
const BATCH: usize = 100;
const BLOCK: usize = 64 << 10;

pub(super) struct StdioTransport<R, W> {
    input: R,
    /// Bytes of an incomplete line.
    line: Vec<u8>,
    /// The block read last, and the range of its unread bytes.
    block: Box<[u8]>,
    unread: Range<usize>,
    /// The line is too long and is skipped to its end.
    skipping: bool,
    /// A request has arrived: notifications before that have no effect.
    begun: bool,
    ready: VecDeque<ClientJsonRpcMessage>,
    output: Arc<Mutex<Option<W>>>,
}

impl<R, W> StdioTransport<R, W>
where
    R: tokio::io::AsyncRead + Unpin + Send,
    W: tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    pub(super) fn new(input: R, output: W) -> Self {
        Self {
            input,
            line: Vec::new(),
            block: vec![0; BLOCK].into(),
            unread: 0..0,
            skipping: false,
            begun: false,
            ready: VecDeque::new(),
            output: Arc::new(Mutex::new(Some(output))),
        }
    }

    /// The next line without its newline; `None` at the end. Cancellation safe: bytes
    /// read so far are kept.
    async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            let unread = self.unread.clone();
            if let Some(length) = memchr::memchr(b'\n', &self.block[unread.clone()]) {
                let end = unread.start + length;
                self.take(unread.start..end);
                self.unread.start = end + 1;
                let line = std::mem::take(&mut self.line);
                if std::mem::take(&mut self.skipping) {
                    self.refuse(ErrorData::invalid_request(too_long(), None), glimpsed(&line));
                    continue;
                }
                return Some(line);
            }
            self.take(unread);
            self.unread = 0..0;
            let read = self.input.read(&mut self.block).await.ok().filter(|read| *read > 0)?;
            self.unread = 0..read;
        }
    }

    /// Adds a piece of the block to the line.
    fn take(&mut self, piece: Range<usize>) {
        if self.skipping {
            return;
        }
        self.line.extend_from_slice(&self.block[piece]);
        if self.line.len() > LONGEST {
            self.skipping = true;
            self.line.truncate(GLIMPSE);
            self.line.shrink_to_fit();
        }
    }

    /// Handles one line; answers if it is not a message.
    fn read(&mut self, line: &[u8]) {
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line).trim_ascii();
        if line.is_empty() {
            return;
        }
        // Most lines are one message, which need not be parsed twice, and most of those are calls.
        if let Ok(call) = serde_json::from_slice::<ToolCall>(line) {
            return self.accept(call.into_message());
        }
        if let Ok(message) = serde_json::from_slice::<ClientJsonRpcMessage>(line) {
            return self.accept(message);
        }
        let value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(error) => {
                let why = format!("the message is not JSON: {error}");
                return self.refuse(ErrorData::parse_error(why, None), None);
            }
        };
        match value {
            Value::Array(messages) if (1..=BATCH).contains(&messages.len()) => {
                messages.into_iter().for_each(|message| self.one(message));
            }
            other => self.one(other),
        }
    }

    fn one(&mut self, value: Value) {
        let id = value.get("id").and_then(request_id);
        // An invalid notification gets no answer: the client does not expect one.
        let notification = value.get("method").is_some() && value.get("id").is_none();
        match serde_json::from_value(value) {
            Ok(message) => self.accept(message),
            Err(_) if notification => {}
            Err(error) => {
                let why = format!("this is not a message of the Model Context Protocol: {error}");
                self.refuse(ErrorData::invalid_request(why, None), id);
            }
        }
    }

    fn accept(&mut self, message: ClientJsonRpcMessage) {
        self.begun |= matches!(message, ClientJsonRpcMessage::Request(_));
        if self.begun {
            self.ready.push_back(message);
        }
    }

    /// Answers with a protocol error in a separate task: reading the next message may be
    /// cancelled at any moment, and half a line on stdout would corrupt everything after it.
    fn refuse(&self, error: ErrorData, id: Option<RequestId>) {
        let output = self.output.clone();
        let message = ServerJsonRpcMessage::error(error, id);
        // A client that no longer reads needs no answer.
        tokio::spawn(async move { write(&output, message).await.ok() });
    }
}

/// Only calls. The SDK tries one kind of message after the other on a copy of the line,
/// which takes five times as long.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolCall {
    #[serde(rename = "jsonrpc")]
    _version: JsonRpcVersion2_0,
    id: RequestId,
    #[serde(rename = "method")]
    _method: CallToolRequestMethod,
    params: CallToolRequestParams,
}

impl ToolCall {
    fn into_message(self) -> ClientJsonRpcMessage {
        let mut request = CallToolRequest::new(self.params);
        // The SDK keeps it there when it parses a message itself.
        if let Some(meta) = request.params.meta.take() {
            request.extensions.insert(meta);
        }
        ClientJsonRpcMessage::request(ClientRequest::CallToolRequest(request), self.id)
    }
}

/// For an unknown method the SDK's message is just its name.
fn in_words(mut message: ServerJsonRpcMessage) -> ServerJsonRpcMessage {
    if let ServerJsonRpcMessage::Error(answer) = &mut message
        && answer.error.code == ErrorCode::METHOD_NOT_FOUND
        && !answer.error.message.contains(' ')
    {
        answer.error.message = format!("there is no method {}", answer.error.message).into();
    }
    message
}

fn too_long() -> String {
    format!("the message is longer than {LONGEST} bytes")
}

fn request_id(value: &Value) -> Option<RequestId> {
    serde_json::from_value(value.clone()).ok()
}

/// The id in the beginning of a message that is not kept, if it precedes the parameters.
fn glimpsed(line: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(line);
    let head = text.split("\"params\"").next()?;
    let value = head.split("\"id\"").nth(1)?.trim_start().strip_prefix(':')?.trim_start();
    let value = match value.strip_prefix('"') {
        Some(text) => Value::from(text.split('"').next()?),
        None => value.split([',', '}', ' ']).next()?.parse::<i64>().ok()?.into(),
    };
    request_id(&value)
}

async fn write<W: tokio::io::AsyncWrite + Unpin>(
    output: &Mutex<Option<W>>,
    message: ServerJsonRpcMessage,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(&message)?;
    line.push(b'\n');
    let mut output = output.lock().await;
    let output = output.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    output.write_all(&line).await?;
    output.flush().await
}

impl<R, W> Transport<RoleServer> for StdioTransport<R, W>
where
    R: tokio::io::AsyncRead + Unpin + Send,
    W: tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let output = self.output.clone();
        async move { write(&output, in_words(message)).await }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let line = self.line().await?;
            self.read(&line);
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        drop(self.output.lock().await.take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_long_message_is_found_before_its_parameters() {
        let id = |text: &str| glimpsed(text.as_bytes()).map(|id| id.to_string());
        assert_eq!(id(r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"#).as_deref(), Some("7"));
        assert_eq!(id(r#"{"id" : "a b","params":{"#).as_deref(), Some("a b"));
        assert_eq!(id(r#"{"params":{"id":7"#), None);
        assert_eq!(id(r#"{"method":"#), None);
    }

    #[test]
    fn a_call_is_read_as_the_sdk_reads_it() {
        let call =
            |rest: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call"{rest}}}"#);
        let read = |text: &str| {
            let call = serde_json::from_str::<ToolCall>(text).ok()?;
            Some(format!("{:?}", call.into_message()))
        };
        for rest in [
            r#","params":{"name":"exec"}"#,
            r#","params":{"name":"exec","arguments":null,"_meta":null}"#,
            r#","params":{"name":"exec","arguments":{"argv":["a",{"b":1.5}]},"other":1}"#,
            r#","params":{"_meta":{"progressToken":"x","taskId":"t"},"name":"e","arguments":{}}"#,
            r#","params":{"name":"exec","requestState":"s"}"#,
        ] {
            let message: ClientJsonRpcMessage = serde_json::from_str(&call(rest)).unwrap();
            assert_eq!(read(&call(rest)), Some(format!("{message:?}")), "{rest}");
        }
        for other in [
            r#","params":{"name":"exec"},"result":{}"#,
            r#","params":{"name":"exec"},"id":8"#,
            r#","params":{}"#,
            "",
        ] {
            assert_eq!(read(&call(other)), None, "{other}");
        }
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#), None);
        assert_eq!(
            read(r#"{"jsonrpc":"1.0","id":7,"method":"tools/call","params":{"name":"e"}}"#),
            None
        );
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let long = vec![b'x'; BLOCK + 10];
        let text = [b"first\n\nsecond \xff\n", &long[..], b"\nnot ended"].concat();
        for size in [1, 7, 64, 2 * BLOCK] {
            let (mut client, server) = tokio::io::duplex(size);
            let mut transport = StdioTransport::new(server, tokio::io::sink());
            let write = async {
                client.write_all(&text).await.unwrap();
                drop(client);
            };
            let read = async {
                let mut lines = Vec::new();
                while let Some(line) = transport.line().await {
                    lines.push(line);
                }
                lines
            };
            let ((), lines) = runtime.block_on(async { tokio::join!(write, read) });
            let expected = [b"first", &b""[..], b"second \xff", &long];
            assert_eq!(lines, expected, "{size} bytes at once");
        }
    }
}
