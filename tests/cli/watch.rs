//! `-w`: repeated answers of a fake agent.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixListener,
    process::{Child, Stdio},
};

use tempfile::TempDir;

use crate::command::command;

/// `status -w -o json`, and the socket on which the fake agent listens.
fn watching() -> (Child, UnixListener, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let child = command()
        .args(["status", "-w", "-o", "json", "--socket"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, listener, dir)
}

/// Answers each caller with the next number.
fn answer(listener: &UnixListener, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let mut caller = listener.accept().unwrap().0;
        let body = format!("{{\"number\":{number}}}");
        // The caller may have exited.
        let _ = caller.read(&mut [0; 4096]);
        let _ = write!(
            caller,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
    }
}

#[test]
fn watch_writes_errors_of_the_agent_beside_the_json() {
    let (mut child, listener, _dir) = watching();
    answer(&listener, 0..1);
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
