//! Termination messages from files that a container may leave.

use std::{fs, os::unix::fs::symlink};

use tempfile::TempDir;

use super::*;

/// A failed container, with a directory for its two files.
struct Words {
    _dir: TempDir,
    container: Container,
}

impl Words {
    fn new(file: Option<&[u8]>, log: Option<&[u8]>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (file_path, log_path) = (dir.path().join("1a2b3c4d"), dir.path().join("0.log"));
        for (path, content) in [(&file_path, file), (&log_path, log)] {
            if let Some(content) = content {
                fs::write(path, content).unwrap();
            }
        }
        let container = Container {
            exit_code: 1,
            reason: "Error".into(),
            termination_message_file: Some(file_path.display().to_string()),
            message_falls_back_to_log: true,
            log_path: log_path.display().to_string(),
            ..Container::listed("app", ContainerState::Exited)
        };
        Self { _dir: dir, container }
    }

    fn file(&self) -> &Path {
        Path::new(self.container.termination_message_file.as_ref().unwrap())
    }

    fn read(&self) -> Result<String, Why> {
        read(&self.container)
    }
}

fn log_line(tag: &str, text: &str) -> String {
    format!("2026-01-02T03:04:05.678901234Z stdout {tag} {text}\n")
}

#[test]
fn end_of_the_file_or_else_of_the_log_is_the_message() {
    let log = log_line("F", "first") + &log_line("P", "sec") + &log_line("F:extra", "ond");
    let lines: String = (0..100).map(|number| log_line("F", &number.to_string())).collect();
    let last_lines: String = (20..100).map(|number| format!("{number}\n")).collect();
    let long: String = (0..20).map(|_| log_line("P", &"y".repeat(16 * 1024))).collect();
    let odd = format!("garbage\n\n{}t nowhere F text\n", log_line("F", "good"));
    let long_file = [vec![b'a'; 10], vec![b'b'; 4096]].concat();
    let split = ["ä".as_bytes(), &[b'x'; 4094], &[0xff]].concat();
    for (claim, file, log, expected) in [
        (
            "file before log",
            Some(&b"out of disk"[..]),
            log.as_str(),
            "out of disk",
        ),
        ("no file", None, log.as_str(), "first\nsecond\n"),
        ("empty file", Some(b""), log.as_str(), "first\nsecond\n"),
        ("nothing", None, "", ""),
        ("4096 bytes of the file", Some(&long_file), "", &"b".repeat(4096)),
        (
            "split character",
            Some(&split),
            "",
            &format!("{}\u{fffd}", "x".repeat(4094)),
        ),
        ("nothing was cut", Some(&[0x80, b'x']), "", "\u{fffd}x"),
        ("80 lines of the log", None, &lines, &last_lines),
        ("2048 bytes of the log", None, &long, &"y".repeat(2048)),
        ("lines of another format", None, &odd, "good\n"),
    ] {
        let log = Some(log.as_bytes()).filter(|log| !log.is_empty());
        assert_eq!(Words::new(file, log).read().unwrap(), expected, "{claim}");
    }
}

#[test]
fn links_pipes_and_directories_are_refused_without_blocking() {
    let link = Words::new(None, Some(log_line("F", "secret").as_bytes()));
    symlink(&link.container.log_path, link.file()).unwrap();
    let pipe = Words::new(None, None);
    nix::unistd::mkfifo(pipe.file(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let directory = Words::new(None, None);
    fs::create_dir(directory.file()).unwrap();
    let socket = Words::new(None, None);
    let _listener = std::os::unix::net::UnixListener::bind(socket.file()).unwrap();
    for words in [link, pipe, directory, socket] {
        let expected = format!("{} is not a regular file", words.file().display());
        assert_eq!(words.read(), Err(expected.into()));
    }
}

#[test]
fn log_counts_only_for_a_failure_whose_policy_allows_it() {
    let words = Words::new(None, Some(log_line("F", "why").as_bytes()));
    type Change = fn(&mut Container);
    let changes: [(&str, Change, &str); 6] = [
        ("failed, and the policy allows it", |_| {}, "why\n"),
        ("policy", |it| it.message_falls_back_to_log = false, ""),
        ("succeeded", |it| it.exit_code = 0, ""),
        ("could not start", |it| it.reason = CANNOT_RUN.into(), ""),
        ("log path not absolute", |it| it.log_path = "0.log".into(), ""),
        ("no log path", |it| it.log_path = String::new(), ""),
    ];
    for (claim, change, expected) in changes {
        let mut container = words.container.clone();
        change(&mut container);
        let read = read(&container);
        assert_eq!(read.unwrap(), expected, "{claim}");
    }
}

#[test]
fn only_exited_containers_are_read_and_a_failure_is_the_message() {
    let with_id = |words: &Words, id: &str, state| Container {
        id: id.into(),
        state,
        ..words.container.clone()
    };
    let (words, broken) = (Words::new(Some(b"bye"), None), Words::new(None, None));
    fs::create_dir(broken.file()).unwrap();
    let containers = [
        with_id(&words, "c1", ContainerState::Exited),
        with_id(&words, "c2", ContainerState::Running),
        with_id(&broken, "c3", ContainerState::Exited),
    ];
    let (messages, errors) = read_all(&containers);
    let lost = format!(
        "Termination message lost: {} is not a regular file",
        broken.file().display()
    );
    let expected = [("c1".to_owned(), "bye".to_owned()), ("c3".to_owned(), lost)];
    assert_eq!(messages, Messages::from(expected));
    assert_eq!(errors.len(), 1);
}
