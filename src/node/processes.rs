//! Whether a process named by the runtime still exists.

use std::{fs, io, path::Path, time::Duration};

use nix::{
    errno::Errno,
    unistd::{SysconfVar, sysconf},
};

/// Index of the start time (field 22) in `/proc/PID/stat`, counted after the name.
const START_FIELD: usize = 19;
/// Clock ticks are rounded down.
const TICK: Duration = Duration::from_millis(10);

/// Whether the process with this PID runs and had started by `started_by` (since boot): PIDs are reused. A zombie does
/// not run.
///
/// # Errors
/// When it cannot be read.
pub fn is_running(proc: &Path, pid: i32, started_by: Duration) -> io::Result<bool> {
    let start = running_since(proc, pid)?;
    Ok(start.is_some_and(|start| start <= started_by.saturating_add(TICK)))
}

/// When the process with this PID started, since boot; `None` if it has exited. A zombie has.
///
/// # Errors
/// When it cannot be read.
pub fn running_since(proc: &Path, pid: i32) -> io::Result<Option<Duration>> {
    let dir = proc.join(pid.to_string());
    let Some(process) = stat(&dir)? else { return Ok(None) };
    if process.runs {
        return Ok(Some(process.start));
    }
    // The first thread may have exited alone.
    let threads = match fs::read_dir(dir.join("task")) {
        Err(error) if has_exited(&error) => return Ok(None),
        threads => threads?,
    };
    for thread in threads {
        if stat(&thread?.path())?.is_some_and(|thread| thread.runs) {
            return Ok(Some(process.start));
        }
    }
    Ok(None)
}

struct Stat {
    runs: bool,
    start: Duration,
}

fn stat(dir: &Path) -> io::Result<Option<Stat>> {
    let text = match fs::read_to_string(dir.join("stat")) {
        Err(error) if has_exited(&error) => return Ok(None),
        text => text?,
    };
    parse(&text).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The name may contain any character.
fn parse(stat: &str) -> Option<Stat> {
    let (_, behind) = stat.rsplit_once(") ")?;
    let mut fields = behind.split_ascii_whitespace();
    let state = fields.next()?;
    let ticks: u64 = fields.nth(START_FIELD - 1)?.parse().ok()?;
    let a_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    let a_second = u64::try_from(a_second).ok().filter(|ticks| *ticks > 0)?;
    let start =
        Duration::from_secs(ticks / a_second) + Duration::from_secs(ticks % a_second) / u32::try_from(a_second).ok()?;
    Some(Stat {
        runs: !matches!(state, "Z" | "X" | "x"),
        start,
    })
}

/// It exited before or during the read.
fn has_exited(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(1_000_000_000);

    #[test]
    fn process_runs_until_it_exits_and_a_zombie_does_not() {
        let proc = Path::new("/proc");
        let mut sleeps = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(sleeps.id()).unwrap();
        assert!(is_running(proc, pid, LATER).unwrap());
        assert!(!is_running(proc, pid, Duration::ZERO).unwrap(), "it started after boot");
        sleeps.kill().unwrap();
        while is_running(proc, pid, LATER).unwrap() {}
        assert!(proc.join(pid.to_string()).exists(), "it is a zombie");
        sleeps.wait().unwrap();
        assert!(!is_running(proc, pid, LATER).unwrap());
    }

    #[test]
    fn process_with_one_running_thread_runs() {
        let dir = tempfile::tempdir().unwrap();
        let stat = |state: &str| format!("7 (a) Z (b)) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0\n");
        let write = |path: &str, state| {
            fs::create_dir_all(dir.path().join(path)).unwrap();
            fs::write(dir.path().join(path).join("stat"), stat(state)).unwrap();
        };
        write("7", "Z");
        write("7/task/7", "Z");
        assert!(!is_running(dir.path(), 7, LATER).unwrap());
        write("7/task/9", "D");
        assert!(is_running(dir.path(), 7, LATER).unwrap());
        assert!(
            !is_running(dir.path(), 7, Duration::from_secs(4)).unwrap(),
            "another one has its id"
        );
        fs::write(dir.path().join("7/stat"), "nonsense").unwrap();
        assert!(is_running(dir.path(), 7, LATER).is_err());
    }
}
