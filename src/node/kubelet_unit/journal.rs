//! The last entries of a unit in systemd's journal, by `journalctl`: libsystemd would be one more library on every node.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{model::foreign::ForeignText, why::Why, words::io_error};

/// The program that reads the journal.
pub const PROGRAM: &str = "journalctl";
/// It reads some files of the disk.
const LIMIT: Duration = Duration::from_secs(5);
/// Enough for the last words of a Go program, which may print the stacks of all goroutines after them. journalctl leaves out messages of
/// more than 4 KiB.
const ENTRIES: &str = "400";

/// A line that a process of the unit has written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// The line.
    pub message: String,
    /// The ID of the unit's run.
    pub run: String,
}

/// The last entries of this unit since the boot, oldest first.
///
/// # Errors
/// Why the journal could not be read.
pub async fn last_entries(journalctl: &Path, unit: &str) -> Result<Vec<Entry>, Why> {
    let mut command = Command::new(journalctl);
    command
        .args(["--boot", "--reverse", "--quiet", "--no-pager", "--lines", ENTRIES])
        .args(["--output=json", "--output-fields=MESSAGE,_SYSTEMD_INVOCATION_ID"])
        // Not --unit: it adds systemd's own messages about the unit.
        .arg(format!("_SYSTEMD_UNIT={unit}"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    match timeout(LIMIT, command.output()).await {
        Ok(Ok(output)) if output.stdout.is_empty() && !output.stderr.is_empty() => {
            let error = String::from_utf8_lossy(&output.stderr);
            Err(Why::new(ForeignText::within(error.trim_end(), 200)))
        }
        Ok(Ok(output)) => Ok(parse(&output.stdout)),
        Ok(Err(error)) => Err(format!("{}: {}", journalctl.display(), io_error(&error)).into()),
        Err(_) => Err(format!("{} has not answered within {LIMIT:?}", journalctl.display()).into()),
    }
}

/// Entries in JSON, one per line, newest first. A line that is no entry is left out.
fn parse(output: &[u8]) -> Vec<Entry> {
    let lines = output.split(|byte| *byte == b'\n').rev();
    let entries = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let entries = entries.map(|fields| Entry {
        message: text(&fields["MESSAGE"]),
        run: text(&fields["_SYSTEMD_INVOCATION_ID"]),
    });
    entries.collect()
}

/// A field: text, or the bytes of a text with control characters.
fn text(field: &Value) -> String {
    let Value::Array(bytes) = field else {
        return field.as_str().unwrap_or_default().to_owned();
    };
    let bytes = bytes.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok());
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn entries_are_read_oldest_first_whatever_form_their_fields_have() {
        let output = br#"{"MESSAGE":[97,27,91,98],"_SYSTEMD_INVOCATION_ID":"b2"}
{"MESSAGE":null}
{"MESSAGE":"first","_SYSTEMD_INVOCATION_ID":"b1"}
{"MESSAGE":"cut o"#;
        let entry = |message: &str, run: &str| Entry {
            message: message.to_owned(),
            run: run.to_owned(),
        };
        assert_eq!(
            parse(output),
            [entry("first", "b1"), entry("", ""), entry("a\u{1b}[b", "b2")]
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
    async fn program_that_is_missing_or_fails_is_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let missing = last_entries(&dir.path().join("none"), "kubelet.service").await;
        assert!(
            missing
                .unwrap_err()
                .to_string()
                .ends_with("none: no such file or directory")
        );
        let refused = program(dir.path(), "echo 'No\tpermission' >&2; exit 1");
        assert_eq!(
            last_entries(&refused, "kubelet.service").await,
            Err(Why::new("No\\tpermission"))
        );
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
        assert!(error.to_string().contains("has not answered within 5s"), "{error}");
    }
}
