//! The SDK's own client, which parses every answer with the protocol's types.

use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use rmcp::model::{CallToolRequestParams, ReadResourceRequestParams};
use rmcp::{ServiceExt, model::ClientConfig};
use serde_json::json;
use tokio::net::unix::pipe;

use crate::common::{RETAKE, Sandbox};

fn start(sandbox: &Sandbox) -> (Child, pipe::Receiver, pipe::Sender) {
    let mut server = sandbox
        .command(RETAKE)
        .arg("mcp")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = OwnedFd::from(server.stdin.take().unwrap());
    let stdout = OwnedFd::from(server.stdout.take().unwrap());
    let stdin = pipe::Sender::from_owned_fd(stdin).unwrap();
    (server, pipe::Receiver::from_owned_fd(stdout).unwrap(), stdin)
}

#[test]
fn the_sdk_understands_every_answer() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = Sandbox::new();
        let (mut server, stdout, stdin) = start(&sandbox);
        let client = ClientConfig::default().serve((stdout, stdin)).await.unwrap();
        let tools = client.list_all_tools().await.unwrap();
        assert_eq!(tools.len(), 12);
        for tool in &tools {
            assert!(tool.description.is_some() && tool.annotations.is_some(), "{}", tool.name);
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            let output = tool.output_schema.as_ref().unwrap();
            assert_eq!(output["type"], "object", "{}", tool.name);
            // Clients' validators warn about formats that only Rust knows.
            let schemas = json!([tool.input_schema, output]).to_string();
            assert!(!schemas.contains("\"uint"), "{}: {schemas}", tool.name);
        }
        let arguments = json!({"argv": ["echo", "hello"]}).as_object().unwrap().clone();
        let call = CallToolRequestParams::new("exec").with_arguments(arguments);
        let result = client.call_tool(call).await.unwrap();
        assert_eq!(result.is_error, Some(false));
        let facts = result.structured_content.unwrap();
        // Everything in the schema is present.
        let schema = tools.iter().find(|tool| tool.name == "exec").unwrap();
        let schema = schema.output_schema.as_ref().unwrap();
        for name in schema["required"].as_array().unwrap() {
            assert!(facts.get(name.as_str().unwrap()).is_some(), "{name}");
        }
        let resources = client.list_all_resources().await.unwrap();
        let read = ReadResourceRequestParams::new(resources[0].uri.clone());
        assert_eq!(client.read_resource(read).await.unwrap().contents.len(), 1);
        assert!(client.call_tool(CallToolRequestParams::new("no_such_tool")).await.is_err());
        client.cancel().await.unwrap();
        assert!(server.wait().unwrap().success());
    });
}
