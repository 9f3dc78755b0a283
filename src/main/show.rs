//! The verbs that show something.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use jiff::Timestamp;
use pod_teardown::{
    cli::{
        GcVerb, GcWhyArgs, GraphArgs, GraphFormat, OutputFormat, PlainQueryFlags, QueryFlags, StatusArgs, TimelineArgs,
        TimelineFormat,
    },
    collector::picture::{Picture, dot::dot},
    explanation::Explanation,
    model::trace::Trace,
    object_name::ObjectName,
    ops::{
        admin, client,
        gc_status::{self, GcReport},
        output::Output,
        status::{self, StatusReport},
        timeline, version,
    },
};

use crate::{
    print::{USAGE, failed, print, print_formatted, print_value},
    query::{CLEAR_SCREEN, query, watch_answer, while_read, with_text},
};

/// `status --exit-code`: something is blocked.
const BLOCKED: u8 = 2;
/// How often `timeline --follow` queries the agent.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Queries the agent once, or with `--watch` again and again.
pub async fn show_status(arguments: &StatusArgs) -> ExitCode {
    let StatusArgs {
        watch,
        exit_code,
        query,
    } = arguments;
    let QueryFlags { socket, output } = query;
    let is_wide = *output == OutputFormat::Wide;
    let text = |report: &StatusReport| status::text(report, is_wide, Timestamp::now());
    let output = with_text(*output, text);
    if *watch {
        return while_read(watch_answer(socket, admin::STATUS, output, |_| false)).await;
    }
    if !exit_code {
        return self::query(socket, admin::STATUS, output).await;
    }
    match client::get_raw(&socket.socket, admin::STATUS).await {
        Ok(answer) => match (answer.parse(), answer.format(output.as_ref())) {
            (Ok(report), Ok(text)) => {
                let code = if status::is_blocked(&report) { BLOCKED } else { 0 };
                print_formatted(&output, &text, code)
            }
            (Err(error), _) | (_, Err(error)) => failed(1, &error.to_string()),
        },
        Err(error) => failed(1, &error.to_string()),
    }
}

pub async fn show_version(PlainQueryFlags { socket, output }: &PlainQueryFlags) -> ExitCode {
    let versions = version::collect(&socket.socket).await;
    print_value(&with_text((*output).into(), version::text), &versions, 0)
}

pub async fn show_collector(verb: GcVerb) -> ExitCode {
    match verb {
        GcVerb::Status(QueryFlags { socket, output }) => {
            let is_wide = output == OutputFormat::Wide;
            let text = |report: &GcReport| gc_status::text(report, is_wide, Timestamp::now());
            query(&socket, admin::collector::STATUS, with_text(output, text)).await
        }
        GcVerb::Graph(GraphArgs {
            object,
            uid,
            output,
            socket,
        }) => {
            let center = match object.name() {
                Ok(center) => center.or(uid.map(ObjectName::Uid)),
                Err(why) => return failed(USAGE, &why),
            };
            let output: Output<fn(&Picture) -> String> = match output {
                GraphFormat::Dot => Output::Text(dot),
                GraphFormat::Json => Output::Json,
                GraphFormat::Yaml => Output::Yaml,
            };
            query(&socket, &admin::collector::graph_path(center.as_ref()), output).await
        }
        GcVerb::Why(GcWhyArgs { object, query: flags }) => match object.name() {
            Ok(name) => explain(&flags, &name.to_string()).await,
            Err(why) => failed(USAGE, &why),
        },
    }
}

pub async fn explain(PlainQueryFlags { socket, output }: &PlainQueryFlags, object: &str) -> ExitCode {
    let path = admin::why::request_path(object);
    query(socket, &path, with_text((*output).into(), Explanation::text)).await
}

/// Explains a pod again and again, until it is gone.
pub async fn watch_explanation(PlainQueryFlags { socket, output }: &PlainQueryFlags, pod: &str) -> ExitCode {
    let path = admin::why::request_path(pod);
    let is_gone = |why: &Explanation| why.is_gone;
    let output = with_text((*output).into(), Explanation::text);
    while_read(watch_answer(socket, &path, output, is_gone)).await
}

/// Shows or follows the timeline of a pod, or lists the known ones.
pub async fn show_timeline(arguments: TimelineArgs) -> ExitCode {
    let TimelineArgs {
        pod,
        follow,
        output,
        socket,
    } = arguments;
    let pod = match pod.id_or_namespace() {
        Err(why) => return failed(USAGE, &why),
        Ok(Err(_)) if follow || output == TimelineFormat::Svg => {
            return failed(
                USAGE,
                "--follow and -o svg need a POD; without one, timeline lists the known terminations",
            );
        }
        Ok(Err(namespace)) => {
            let is_wide = output == TimelineFormat::Wide;
            let list = |entries: &Vec<_>| timeline::list(entries, namespace.as_deref(), is_wide, Timestamp::now());
            return query(&socket, admin::TIMELINES, timeline_output(output, list)).await;
        }
        Ok(Ok(pod)) => pod,
    };
    let path = format!("{}/{pod}", admin::TIMELINES);
    let (draws_svg, is_wide) = (output == TimelineFormat::Svg, output == TimelineFormat::Wide);
    let draw = |traces: &Vec<Trace>| match draws_svg {
        true => timeline::svg(traces),
        false => {
            let text = |trace| timeline::text(trace, is_wide);
            traces.iter().map(text).collect::<Vec<_>>().join("\n")
        }
    };
    let output = timeline_output(output, draw);
    if follow {
        let shows = matches!(&output, Output::Text(_)) && !draws_svg && io::stdout().is_terminal();
        loop {
            match client::get::<Vec<Trace>>(&socket.socket, &path).await {
                Err(error) => return failed(1, &error.to_string()),
                Ok(traces) if timeline::are_finished(&traces) => break,
                Ok(traces) if shows => {
                    // A failure is reported by the last write.
                    write!(io::stdout(), "{CLEAR_SCREEN}").ok();
                    let code = print(&draw(&traces), 0);
                    if code != ExitCode::SUCCESS {
                        return code;
                    }
                }
                Ok(_) => {}
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
        if shows {
            write!(io::stdout(), "{CLEAR_SCREEN}").ok();
        }
    }
    query(&socket, &path, output).await
}

/// The output format of a timeline, with its text form.
fn timeline_output<F>(output: TimelineFormat, text: F) -> Output<F> {
    match output {
        TimelineFormat::Json => Output::Json,
        TimelineFormat::Yaml => Output::Yaml,
        TimelineFormat::Table | TimelineFormat::Wide | TimelineFormat::Svg => Output::Text(text),
    }
}
