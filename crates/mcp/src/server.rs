//! The server's side of the protocol: its capabilities; calls and resources are passed on.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, ErrorData,
    Implementation, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};

use super::resources;
use super::session::ClientSession;
use super::tools::{self, Call};

const INSTRUCTIONS: &str = "\
Runs commands on the record. Use exec instead of a shell for builds, tests and other commands: it \
never hangs, terminates everything it started, keeps all output, and answers with the outcome \
first, then test results, then errors and the ends of the output. If part of the output is left out, runs_logs \
reads it by line range or pattern; do not run the command again for that, nor pipe it through head \
or tail. Use exec_start for commands that keep running. runs_list, runs_search and tests show earlier \
runs and their results.";

const NO_SHELL: &str = " Shell lines (pipes, &&, redirections, variables) are off: give one plain \
command at a time, or argv.";

pub(super) struct Server {
    pub(super) session: Arc<ClientSession>,
}

/// Tells the loop that offered this server to an agent that the agent has listed its tools.
fn note_listed() {
    if let Some(file) = std::env::var_os("RETAKE_MCP_LISTED") {
        // If this fails, the loop reports that the tools were not listed.
        _ = std::fs::OpenOptions::new().write(true).create_new(true).open(file);
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let own = Implementation::new("retake", env!("CARGO_PKG_VERSION"));
        let mut instructions = INSTRUCTIONS.to_owned() + &self.session.sandbox.instructions();
        if self.session.policy_config.shell != Some(true) {
            instructions.push_str(NO_SHELL);
        }
        ServerConfig::new(capabilities).with_server_info(own).with_instructions(instructions)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        note_listed();
        Ok(ListToolsResult::with_all_items(tools::offered(&context)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all().iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = Call::new(&self.session, context);
        // The future of all tools is large, and the SDK moves its value a dozen times.
        let answered = tools::call(&self.session, &request.name, request.arguments, call);
        Ok(Box::pin(answered).await?.into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(&self.session).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&self.session, request.uri).await
    }

    /// Requests that the SDK could not parse arrive here too, under their own name.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method;
        let known = ["tools/call", "tools/list", "resources/read", "resources/list", "initialize"];
        if known.contains(&method.as_str()) {
            let message = format!("the parameters of {method} are not valid");
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            format!("there is no method {method}"),
            None,
        ))
    }
}
