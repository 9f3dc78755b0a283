//! Termination messages from files that a container may leave.

use std::fs;
use std::os::unix::fs::symlink;

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;

/// A directory with the two files, each only if it is not empty.
struct Words {
    dir: TempDir,
}

impl Words {
    fn new(file: Option<&[u8]>, log: Option<&[u8]>) -> Self {
        let words = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for (path, content) in [(words.file(), file), (words.log(), log)] {
            if let Some(content) = content {
                fs::write(path, content).unwrap();
            }
        }
        words
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("1a2b3c4d")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("0.log")
    }

    fn read(&self) -> Result<String, Error> {
        TerminationMessage::new(Some(self.file()), Some(self.log())).read()
    }
}

fn mk_container(words: &Words) -> Container {
    Container {
        id: "c1".into(),
        name: "app".into(),
        attempt: 0,
        sandbox_id: "s1".into(),
        state: ContainerState::Exited,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: None,
        finished_at: None,
        exit_code: 1,
        reason: "Error".into(),
        message: String::new(),
        image: "busybox".into(),
        image_ref: "sha256:1".into(),
        restart_count: 0,
        termination_message_file: Some(words.file().display().to_string()),
        message_falls_back_to_log: true,
        log_path: words.log().display().to_string(),
        is_unread: false,
    }
}

fn log_line(tag: &str, text: &str) -> String {
    format!("2026-01-02T03:04:05.678901234Z stdout {tag} {text}\n")
}

#[test]
fn message_file_is_used_before_the_log() {
    let words = Words::new(Some(b"out of disk"), Some(log_line("F", "from the log").as_bytes()));
    assert_eq!(words.read().unwrap(), "out of disk");
}

#[test]
fn only_the_last_4096_bytes_of_the_file_count() {
    let words = Words::new(Some(&[vec![b'a'; 10], vec![b'b'; 4096]].concat()), None);
    assert_eq!(words.read().unwrap(), "b".repeat(4096));
}

#[test]
fn split_character_is_omitted_and_invalid_byte_is_replaced() {
    let content = ["ä".as_bytes(), &[b'x'; 4094], &[0xff]].concat();
    let words = Words::new(Some(&content), None);
    assert_eq!(words.read().unwrap(), format!("{}\u{fffd}", "x".repeat(4094)));
    let words = Words::new(Some(&[0x80, b'x']), None);
    assert_eq!(
        words.read().unwrap(),
        "\u{fffd}x",
        "nothing was cut here, so nothing may vanish"
    );
}

#[test]
fn log_replaces_a_missing_or_empty_file() {
    let log = log_line("F", "first") + &log_line("P", "sec") + &log_line("F:extra", "ond");
    for file in [None, Some(&b""[..])] {
        assert_eq!(
            Words::new(file, Some(log.as_bytes())).read().unwrap(),
            "first\nsecond\n"
        );
    }
}

#[test]
fn no_file_and_no_log_is_an_empty_message() {
    assert_eq!(Words::new(None, None).read().unwrap(), "");
    assert_eq!(TerminationMessage::new(None, None).read().unwrap(), "");
}

#[test]
fn last_80_lines_of_the_log_are_used() {
    let log: String = (0..100).map(|i| log_line("F", &i.to_string())).collect();
    let expected: String = (20..100).map(|i| format!("{i}\n")).collect();
    assert_eq!(Words::new(None, Some(log.as_bytes())).read().unwrap(), expected);
}

#[test]
fn last_2048_bytes_of_the_log_are_used() {
    let log: String = (0..20).map(|_| log_line("P", &"y".repeat(16 * 1024))).collect();
    assert_eq!(Words::new(None, Some(log.as_bytes())).read().unwrap(), "y".repeat(2048));
}

#[test]
fn lines_of_another_format_are_skipped() {
    let log = format!("garbage\n\n{}t nowhere F text\n", log_line("F", "good"));
    assert_eq!(Words::new(None, Some(log.as_bytes())).read().unwrap(), "good\n");
}

#[test]
fn links_pipes_and_directories_are_refused_without_blocking() {
    let link = Words::new(None, Some(log_line("F", "secret").as_bytes()));
    symlink(link.log(), link.file()).unwrap();
    let pipe = Words::new(None, None);
    nix::unistd::mkfifo(&pipe.file(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let directory = Words::new(None, None);
    fs::create_dir(directory.file()).unwrap();
    let socket = Words::new(None, None);
    let _listener = std::os::unix::net::UnixListener::bind(socket.file()).unwrap();
    for words in [link, pipe, directory, socket] {
        let error = words.read().unwrap_err();
        assert!(
            matches!(&error, Error::NotAFile { path } if *path == words.file()),
            "{error:?}"
        );
    }
}

#[test]
fn the_log_counts_only_for_a_failure_whose_policy_says_so() {
    let words = Words::new(None, Some(log_line("F", "why").as_bytes()));
    let asked = mk_container(&words);
    let cases = [
        ("failed, policy asks", asked.clone(), "why\n"),
        (
            "policy does not ask",
            Container {
                message_falls_back_to_log: false,
                ..asked.clone()
            },
            "",
        ),
        (
            "succeeded",
            Container {
                exit_code: 0,
                ..asked.clone()
            },
            "",
        ),
        (
            "could not even start",
            Container {
                reason: CANNOT_RUN.into(),
                ..asked.clone()
            },
            "",
        ),
        (
            "log path not absolute",
            Container {
                log_path: "0.log".into(),
                ..asked.clone()
            },
            "",
        ),
        (
            "no log path",
            Container {
                log_path: String::new(),
                ..asked
            },
            "",
        ),
    ];
    for (claim, container, expected) in cases {
        assert_eq!(
            TerminationMessage::for_container(&container).read().unwrap(),
            expected,
            "{claim}"
        );
    }
}

#[test]
fn only_exited_containers_are_read_and_a_failure_is_the_message() {
    let words = Words::new(Some(b"bye"), None);
    let broken = Words::new(None, None);
    fs::create_dir(broken.file()).unwrap();
    let containers = [
        mk_container(&words),
        Container {
            id: "c2".into(),
            state: ContainerState::Running,
            ..mk_container(&words)
        },
        Container {
            id: "c3".into(),
            ..mk_container(&broken)
        },
    ];
    let (messages, errors) = read_all(&containers);
    let lost = format!(
        "Termination message lost: {} is not a regular file",
        broken.file().display()
    );
    assert_eq!(messages, Messages::from_iter([("c1", "bye".to_owned()), ("c3", lost)]));
    assert_eq!(errors.len(), 1);
}
