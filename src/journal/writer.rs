//! Writes the journal: batches changes, commits them together, and retries.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redb::Database;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout},
};

use super::{
    contents::{JournalState, Row},
    error::{JournalError, Trouble},
    file,
};
use crate::node::threads::Blocking;

/// How long changes without a waiter are batched. A crash loses them. A commit costs two syncs of the disk, and pods seldom
/// terminate alone.
const BATCH_TIME: Duration = Duration::from_millis(100);
/// Maximum number of writes in one commit.
const BATCH: usize = 1024;

/// Pauses after a failed write. With a waiter it is retried at once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Input of the writer.
pub(super) enum Write {
    Row(Row),
    Durable(oneshot::Sender<Result<(), JournalError>>),
}

/// Storage of the database. It may block.
pub(super) trait Store: Send + Sync {
    /// Opens the database, or creates one with these rows.
    fn open(&self, rows: &[Row]) -> Result<Database, JournalError>;

    /// Called when this row is durable. Some rows are also stored elsewhere.
    fn on_durable(&self, _row: &Row) {}

    /// The quarantined journals.
    fn quarantined(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// The only user of the database.
pub(super) struct Writer {
    pub store: Arc<dyn Store>,
    pub blocking: Blocking,
    /// `None` after an error.
    pub database: Option<Database>,
    pub state: Arc<Mutex<JournalState>>,
}

// === impl Writer ===

impl Writer {
    /// Commits all waiting writes in one transaction, then notifies the waiters.
    pub async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Write>) {
        let mut batch = Vec::new();
        let mut pause = FIRST_PAUSE;
        loop {
            let more = queue.recv_many(&mut batch, BATCH);
            let received = match self.database {
                Some(_) => Some(more.await),
                None => timeout(pause, more).await.ok(),
            };
            let closed = received == Some(0);
            if closed && self.database.is_some() {
                return;
            }
            if !batch.is_empty() {
                batch_writes(&mut batch, &mut queue).await;
            }
            let mut rows = Vec::new();
            let mut waiting = Vec::new();
            for write in batch.drain(..) {
                match write {
                    Write::Row(row) => rows.push(row),
                    Write::Durable(done) => waiting.push(done),
                }
            }
            let result = self.write(rows).await;
            self.report(&result);
            for done in waiting {
                done.send(result.clone()).ok();
            }
            if closed {
                return;
            }
            pause = match result {
                Ok(()) => FIRST_PAUSE,
                Err(_) => (pause * 2).min(LONGEST_PAUSE),
            };
        }
    }

    /// The copy in memory has the rows of a failed commit. It is written as a whole next time.
    async fn write(&mut self, mut rows: Vec<Row>) -> Result<(), JournalError> {
        let database = self.database.take();
        if database.is_none() {
            rows.splice(0..0, self.state.lock().contents.rows());
        }
        let store = Arc::clone(&self.store);
        let any_quarantined = !self.state.lock().quarantined.is_empty();
        let written = self.blocking.run(move || {
            let (database, whole) = match database {
                Some(database) => (database, false),
                None => (store.open(&rows)?, true),
            };
            let began = Instant::now();
            file::commit(&database, whole, &rows)?;
            let took = (!rows.is_empty()).then(|| began.elapsed());
            rows.iter().for_each(|row| store.on_durable(row));
            // A new journal adds to them, and a user removes them.
            let quarantined = (whole || any_quarantined).then(|| store.quarantined());
            Ok((database, quarantined, took))
        });
        let (database, quarantined, took) = written.await.unwrap_or_else(|_| Err(JournalError::damaged()))?;
        self.database = Some(database);
        let mut state = self.state.lock();
        if let Some(quarantined) = quarantined {
            state.quarantined = quarantined;
        }
        if let Some(took) = took {
            state.commits.0.observe(took.as_secs_f64());
        }
        Ok(())
    }

    fn report(&self, result: &Result<(), JournalError>) {
        let Trouble { error: before, failed } = &mut self.state.lock().trouble;
        match result {
            Ok(()) if before.is_some() => tracing::info!("Journal is complete and written again"),
            Ok(()) => {}
            Err(error) => {
                *failed += 1;
                if before.as_ref() != Some(error) {
                    tracing::error!(%error, "Journal cannot be written; a restart would not continue terminations");
                }
            }
        }
        *before = result.as_ref().err().cloned();
    }
}

/// Batches writes until one has a waiter.
async fn batch_writes(batch: &mut Vec<Write>, queue: &mut mpsc::UnboundedReceiver<Write>) {
    let enough = sleep(BATCH_TIME);
    tokio::pin!(enough);
    while batch.len() < BATCH && !batch.iter().any(|write| !matches!(write, Write::Row(_))) {
        tokio::select! {
            // The deadline is fixed.
            biased;
            () = &mut enough => return,
            more = queue.recv() => match more {
                Some(more) => batch.push(more),
                // The agent stops: these are the last writes.
                None => return,
            },
        }
    }
}
