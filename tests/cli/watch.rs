//! `-w`: repeated answers of a fake agent.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixListener,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use serde_json::json;
use tempfile::TempDir;

use crate::command::command;

/// A command that watches, and the socket on which the fake agent listens.
fn watching(arguments: &[&str]) -> (Child, UnixListener, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let child = command()
        .args(arguments)
        .arg("--socket")
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, listener, dir)
}

/// Gives the next caller this answer.
fn answer(listener: &UnixListener, body: &str) {
    let mut caller = listener.accept().unwrap().0;
    // The caller may have exited.
    let _ = caller.read(&mut [0; 4096]);
    let _ = write!(
        caller,
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
}

/// The exit code of a command, which must exit within a minute.
#[expect(clippy::disallowed_methods, reason = "a process has no clock to drive")]
fn exit_code(child: &mut Child) -> Option<i32> {
    for _ in 0..6000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("it does not exit");
}

/// The reader may exit while nothing changes, and before the first line.
#[test]
fn watch_exits_when_its_reader_exits() {
    let trace = json!([{
        "namespace": "default", "name": "web-0", "uid": "1234", "began": "2026-01-02T03:04:05Z", "cause": "deleted",
        "graceSeconds": 3, "graceLeftMs": 0, "graceCountedFrom": "termination", "stage": "terminating", "elapsedMs": 4000, "attempts": 1, "spans": [],
    }]);
    let cases: [(&[&str], &str, bool); 4] = [
        (&["status", "-w", "-o", "json"], "{}", true),
        (&["why", "web-0", "-w", "-o", "yaml"], "{}", true),
        (&["status", "-w", "-o", "yaml"], "{}", false),
        (&["timeline", "web-0", "-f"], &trace.to_string(), false),
    ];
    for (arguments, body, reads) in cases {
        let (mut child, listener, _dir) = watching(arguments);
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        answer(&listener, body);
        if reads {
            reader.read_line(&mut String::new()).unwrap();
        }
        drop(reader);
        // Nothing answers any more: the command waits for an answer or until it asks again.
        assert_eq!(exit_code(&mut child), Some(0), "{arguments:?}");
    }
}

#[test]
fn watch_writes_errors_of_the_agent_beside_the_json() {
    let (mut child, listener, _dir) = watching(&["status", "-w", "-o", "json"]);
    answer(&listener, "{\"number\":0}");
    drop(listener);
    let mut error = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_line(&mut error)
        .unwrap();
    child.kill().unwrap();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.wait().unwrap();
    assert!(error.contains("no agent answers"), "{error}");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["number"],
        0,
        "{out}"
    );
}
