//! The last entries of a unit in systemd's journal, by `journalctl`: libsystemd would be one more library on every node.

use std::{io, path::Path, process::Stdio, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    time::timeout,
};

use crate::{model::foreign::ForeignText, words::io_error};

/// The program that reads the journal.
pub const PROGRAM: &str = "journalctl";
/// It reads some files of the disk.
const LIMIT: Duration = Duration::from_secs(5);
/// Enough for the last words of a Go program, which may print the stacks of all goroutines after them.
const ENTRIES: &str = "400";
/// Longer output is not read. journalctl leaves out messages of more than 4 KiB.
const MAX_OUTPUT: u64 = 4 << 20;

/// A line that a process of the unit has written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// The line.
    pub message: String,
    /// The priority of syslog; systemd takes `info` for standard output and error.
    pub priority: u8,
    /// The ID of the unit's run.
    pub run: String,
}

#[derive(Deserialize)]
struct Fields {
    #[serde(default, rename = "MESSAGE")]
    message: Value,
    #[serde(default, rename = "PRIORITY")]
    priority: Value,
    #[serde(default, rename = "_SYSTEMD_INVOCATION_ID")]
    run: Value,
}

/// The last entries of this unit since the boot, oldest first.
///
/// # Errors
/// Why the journal could not be read.
pub async fn last_entries(journalctl: &Path, unit: &str) -> Result<Vec<Entry>, String> {
    match timeout(LIMIT, output(journalctl, unit)).await {
        Ok(Ok((output, errors))) if output.is_empty() && !errors.is_empty() => {
            Err(ForeignText::within(String::from_utf8_lossy(&errors).trim_end(), 200).into())
        }
        Ok(Ok((output, _))) => Ok(parse(&output)),
        Ok(Err(error)) => Err(format!("{}: {}", journalctl.display(), io_error(&error))),
        Err(_) => Err(format!("{} has not answered within {LIMIT:?}", journalctl.display())),
    }
}

/// Standard output and error of journalctl. It is killed when the future is dropped.
async fn output(journalctl: &Path, unit: &str) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut child = Command::new(journalctl)
        .args(["--boot", "--reverse", "--quiet", "--no-pager", "--lines", ENTRIES])
        .args([
            "--output",
            "json",
            "--output-fields",
            "MESSAGE,PRIORITY,_SYSTEMD_INVOCATION_ID",
        ])
        // Not --unit: it adds systemd's own messages about the unit.
        .arg(format!("_SYSTEMD_UNIT={unit}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (output, errors) = tokio::try_join!(read(stdout), read(stderr))?;
    // Both pipes are closed: it exits, or was cut off.
    child.wait().await?;
    Ok((output, errors))
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_OUTPUT).read_to_end(&mut all).await?;
    }
    Ok(all)
}

/// Entries in JSON, one per line, newest first. What is no entry is left out, such as a line that was cut off.
fn parse(output: &[u8]) -> Vec<Entry> {
    let lines = output.split(|byte| *byte == b'\n').rev();
    let fields = lines.filter_map(|line| serde_json::from_slice::<Fields>(line).ok());
    let entries = fields.map(|fields| Entry {
        message: text(&fields.message),
        priority: text(&fields.priority).parse().unwrap_or(6),
        run: text(&fields.run),
    });
    entries.collect()
}

/// A field: text, the bytes of a text with control characters, or the first of several.
fn text(field: &Value) -> String {
    match field {
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.first().is_some_and(Value::is_u64) => {
            let bytes = parts.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok());
            String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
        }
        Value::Array(values) => values.first().map(text).unwrap_or_default(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn entries_are_read_oldest_first_whatever_form_their_fields_have() {
        let output = br#"{"MESSAGE":[97,27,91,98],"PRIORITY":"3","_SYSTEMD_INVOCATION_ID":"b2"}
{"MESSAGE":null,"PRIORITY":"6"}
{"MESSAGE":["first","second"],"_SYSTEMD_INVOCATION_ID":"b1"}
{"MESSAGE":"cut o"#;
        let entry = |message: &str, priority, run: &str| Entry {
            message: message.to_owned(),
            priority,
            run: run.to_owned(),
        };
        assert_eq!(
            parse(output),
            [entry("first", 6, "b1"), entry("", 6, ""), entry("a\u{1b}[b", 3, "b2")]
        );
    }

    /// A program in place of journalctl. Another process writes it: a fork of this one could still have it open at its exec.
    fn program(dir: &Path, script: &str) -> PathBuf {
        let path = dir.join("journalctl");
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let mut writer = std::process::Command::new("sh");
        assert!(
            writer
                .args(["-c", write])
                .arg(&path)
                .arg(script)
                .status()
                .unwrap()
                .success()
        );
        path
    }

    #[tokio::test]
    async fn program_that_is_missing_fails_or_floods_is_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let missing = last_entries(&dir.path().join("none"), "kubelet.service").await;
        assert!(missing.unwrap_err().ends_with("none: no such file or directory"));
        let refused = program(dir.path(), "echo 'No\tpermission' >&2; exit 1");
        assert_eq!(
            last_entries(&refused, "kubelet.service").await,
            Err("No\\tpermission".to_owned())
        );
        let flood = program(dir.path(), "yes '{\"MESSAGE\":\"x\"}'");
        let entries = last_entries(&flood, "kubelet.service").await.unwrap();
        assert!(entries.len() as u64 <= MAX_OUTPUT / 16, "{}", entries.len());
        let asked = program(dir.path(), "for it; do echo \"{\\\"MESSAGE\\\":\\\"$it\\\"}\"; done");
        let entries = last_entries(&asked, "kubelet.service").await.unwrap();
        assert!(
            entries.iter().any(|it| it.message == "_SYSTEMD_UNIT=kubelet.service"),
            "{entries:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn program_that_hangs_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let hangs = program(dir.path(), "exec sleep 1000");
        let error = last_entries(&hangs, "kubelet.service").await.unwrap_err();
        assert!(error.contains("has not answered within 5s"), "{error}");
    }
}
