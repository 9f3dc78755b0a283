//! `kubectl teardown`: reads the API server with the user's credentials.

use std::{env, process::ExitCode};

use clap::Parser as _;
use jiff::Timestamp;
use pod_teardown::{
    cli::{
        OutputFormat, PodName,
        kubectl::{ClusterFlags, KubectlCli, KubectlVerb, PLUGIN, PodWhyArgs},
    },
    cluster_view::{
        nodes, pod,
        read::{ClusterReader, ReadError},
    },
    explanation::Explanation,
};
use serde::Serialize;

use crate::{
    print::{USAGE, failed, print_clap_error, print_error, print_value},
    query::with_text,
};

/// Whether the program was called as a plugin of kubectl.
pub fn is_plugin() -> bool {
    let name = env::args_os().next().map(std::path::PathBuf::from);
    name.is_some_and(|path| path.file_name().is_some_and(|name| name == PLUGIN))
}

/// Runs the command line of `kubectl teardown`.
pub async fn run() -> ExitCode {
    let cli = match KubectlCli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            print_clap_error(&error);
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let shown = match cli.verb {
        KubectlVerb::Nodes(arguments) => show_nodes(&arguments.cluster).await,
        KubectlVerb::Why(arguments) => explain(&arguments).await,
    };
    shown.unwrap_or_else(|error| failed(1, &error.to_string()))
}

async fn reader(flags: &ClusterFlags) -> Result<ClusterReader, ReadError> {
    ClusterReader::new(flags.kubeconfig.as_deref(), flags.context.clone()).await
}

async fn show_nodes(flags: &ClusterFlags) -> Result<ExitCode, ReadError> {
    let reader = reader(flags).await?;
    let (objects, pods, events) = tokio::join!(reader.nodes(), reader.deleted_pods(), reader.events_of_blocked_pods());
    let objects = objects?;
    let mut unread = Vec::new();
    let (pods, events) = (known(pods, &mut unread), known(events, &mut unread));
    let now = Timestamp::now();
    let lines = nodes::nodes(&objects, pods.as_deref(), events.as_deref(), now);
    let code = show(flags, &lines, |lines, is_wide| nodes::text(lines, is_wide, now));
    for why in unread {
        print_error(&format!("{why}; counts are shown as ?"));
    }
    Ok(code)
}

async fn explain(arguments: &PodWhyArgs) -> Result<ExitCode, ReadError> {
    let flags = &arguments.cluster;
    let reader = reader(flags).await?;
    let PodName { namespace, name } = match arguments.name(reader.default_namespace()) {
        Ok(name) => name,
        Err(why) => return Ok(failed(USAGE, &why)),
    };
    let object = reader.pod(&namespace, &name).await?;
    let explanation = pod::explain(&object, &reader.surroundings(&object).await, Timestamp::now());
    Ok(show(flags, &explanation, |why: &Explanation, _| why.text()))
}

/// The result of a read; its error is added to `unread`.
fn known<T>(read: Result<T, ReadError>, unread: &mut Vec<String>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            unread.push(error.to_string());
            None
        }
    }
}

fn show<T: Serialize + ?Sized>(flags: &ClusterFlags, value: &T, text: impl Fn(&T, bool) -> String) -> ExitCode {
    let is_wide = flags.output == OutputFormat::Wide;
    print_value(&with_text(flags.output, |value: &T| text(value, is_wide)), value, 0)
}
