//! One connection to the server, used by one thread at a time, which waits for each answer.
//!
//! Each method is one round trip: several statements are sent as one message.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_io::Clock;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage, Socket, Statement};

use super::{Batch, Last, Target};

/// How long to wait for an answer: after that the server counts as gone.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Settings of the connection: each statement sees one state, plans use the index whatever the
/// statistics say, and an answer means that the server's disk has it.
const SETTINGS: &str = "SET default_transaction_isolation = 'repeatable read'; \
    SET enable_seqscan = off; SET jit = off; SET bytea_output = 'hex'; \
    SELECT set_config('synchronous_commit', 'on', false) \
    WHERE current_setting('synchronous_commit') IN ('off', 'local')";
const TABLES: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS larder_store \
     (format text NOT NULL, commits bigint NOT NULL, mark bytea NOT NULL, \
      owned_until timestamptz NOT NULL)",
    "CREATE TABLE IF NOT EXISTS larder_records (key bytea PRIMARY KEY, value bytea NOT NULL)",
    "LOCK TABLE larder_store IN EXCLUSIVE MODE",
];
const CHECK: &str = "SELECT current_setting('fsync'), to_regclass('larder_store')::text";
const BEGIN: &str = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; \
    SELECT commits FROM larder_store";
const GET: &str = "SELECT value FROM larder_records WHERE key = $1";
const SCAN: &str =
    "SELECT key, value FROM larder_records WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3";
/// Of two commits at the same time, both change the same row, so the later one fails; if it does
/// not, its snapshot has every commit before it. A commit that takes the volume ($9) waits for the
/// end of a term. A late one ($10) is answered before the database has written it out: what the
/// setting is when the transaction ends decides that.
const COMMIT: &str = "WITH turn AS (UPDATE larder_store SET commits = commits + 1, mark = $1, \
        owned_until = clock_timestamp() + $8::bigint * interval '1 millisecond' \
      WHERE commits = $2 AND (NOT $9::boolean OR owned_until <= clock_timestamp()) \
        AND (SELECT value FROM larder_records WHERE key = $3) IS NOT DISTINCT FROM $4 \
      RETURNING commits), \
    removed AS (DELETE FROM larder_records USING turn WHERE key = ANY($5)), \
    written AS (INSERT INTO larder_records (key, value) \
      SELECT w.key, w.value FROM turn, unnest($6::bytea[], $7::bytea[]) AS w (key, value) \
      ON CONFLICT (key) DO UPDATE SET value = excluded.value) \
    SELECT commits, CASE WHEN $10::boolean THEN set_config('synchronous_commit', 'off', true) END \
    FROM turn";
const FENCE: &str = "WITH turn AS (UPDATE larder_store SET commits = commits + 1, mark = $1 \
      WHERE commits = $2 RETURNING commits, mark) \
    SELECT commits, mark FROM turn UNION ALL \
    SELECT commits, mark FROM larder_store WHERE NOT EXISTS (SELECT FROM turn)";

/// Tables that not each store has. After a recovery from a crash the first is empty.
const HAS_LIFE: &str =
    "SELECT to_regclass('larder_life') IS NOT NULL AND to_regclass('larder_syncs') IS NOT NULL";
const MAKE_LIFE: &str = "BEGIN; LOCK TABLE larder_store IN EXCLUSIVE MODE; \
    CREATE UNLOGGED TABLE IF NOT EXISTS larder_life \
      (one boolean PRIMARY KEY, name text NOT NULL); \
    CREATE TABLE IF NOT EXISTS larder_syncs (syncs bigint NOT NULL); \
    INSERT INTO larder_syncs SELECT 0 WHERE NOT EXISTS (SELECT FROM larder_syncs); COMMIT";
/// A commit that writes something into a logged table, and waits until the database's disk has the
/// log up to it.
const SYNC: &str =
    "UPDATE larder_syncs SET syncs = syncs + 1 RETURNING (SELECT commits FROM larder_store)";

/// In milliseconds.
const OWNED_FOR: &str = "SELECT greatest(0, \
    ceil(extract(epoch FROM owned_until - clock_timestamp()) * 1000))::bigint FROM larder_store";

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server cannot be reached, or is not there for this now.
    Away(String),
    /// Another process committed first.
    Conflict,
    /// It does not do that.
    Refused(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Away(text) | Trouble::Refused(text) => f.write_str(text),
            Trouble::Conflict => f.write_str("others commit to it"),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        let Some(said) = error.as_db_error() else {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            return Trouble::Away(cause.unwrap_or_else(|| error.to_string()));
        };
        let code = said.code();
        let text = match code {
            &SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                format!("{}: check the user, and the password file", said.message())
            }
            &SqlState::UNDEFINED_DATABASE => {
                format!("{}: check its name, or make it by createdb", said.message())
            }
            _ => said.message().to_owned(),
        };
        match code {
            &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED => {
                Trouble::Conflict
            }
            // Classes 08, 53 and 57: connections, resources, an operator.
            code if ["08", "53", "57"].iter().any(|class| code.code().starts_with(class)) => {
                Trouble::Away(text)
            }
            _ => Trouble::Refused(text),
        }
    }
}

/// What a store reports of itself.
pub(super) struct Checked {
    pub(super) fsync: String,
    /// Nothing if there is no store.
    pub(super) format: Option<String>,
}

/// A connection.
pub(super) struct Line {
    /// Moves the bytes of the connection while a thread waits. Present until the end.
    runtime: Option<Runtime>,
    client: Client,
    /// Prepared when they are used first.
    statements: Mutex<HashMap<&'static str, Statement>>,
    clock: Arc<dyn Clock>,
    trips: Arc<AtomicU64>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Without waiting for its tasks, which a task must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Connects, and moves the bytes of the connection in the background.
async fn connect<T>(config: &Config, tls: T) -> Result<Client, Error>
where
    T: MakeTlsConnect<Socket, Stream: Send + 'static>,
{
    let (client, connection) = config.connect(tls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("a connection to the metadata's database ended: {error}");
        }
    });
    Ok(client)
}

/// A key and its value.
pub(super) type Row = (Vec<u8>, Vec<u8>);

impl Line {
    /// Connects.
    pub(super) fn open(
        target: &Target,
        clock: &Arc<dyn Clock>,
        trips: &Arc<AtomicU64>,
    ) -> Result<Line, Trouble> {
        let (config, tls) = (target.config()?, target.tls()?);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Trouble::Away(error.to_string()))?;
        let connecting = async {
            let client = match tls {
                None => connect(&config, NoTls).await?,
                Some(tls) => connect(&config, tls).await?,
            };
            client.batch_execute(SETTINGS).await?;
            Ok::<Client, Error>(client)
        };
        let connected = blocking(|| runtime.block_on(clock.timeout(ANSWER_MAX, connecting)));
        trips.fetch_add(1, Ordering::Relaxed);
        let trouble = match connected {
            Ok(Ok(client)) => {
                let (statements, clock) = (Mutex::default(), Arc::clone(clock));
                let trips = Arc::clone(trips);
                return Ok(Line { runtime: Some(runtime), client, statements, clock, trips });
            }
            Ok(Err(error)) => Trouble::from(error),
            Err(_) => silent(),
        };
        runtime.shutdown_background();
        Err(trouble)
    }

    /// Waits for an answer.
    fn run<T>(&self, ask: impl Future<Output = Result<T, Error>>) -> Result<T, Trouble> {
        self.trips.fetch_add(1, Ordering::Relaxed);
        let runtime = self.runtime.as_ref().expect("it ends with the line");
        let answered = blocking(|| runtime.block_on(self.clock.timeout(ANSWER_MAX, ask)));
        Ok(answered.map_err(|_| silent())??)
    }

    fn prepared(&self, text: &'static str) -> Result<Statement, Trouble> {
        let mut statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = statements.get(text) {
            return Ok(statement.clone());
        }
        let statement = self.run(self.client.prepare(text))?;
        statements.insert(text, statement.clone());
        Ok(statement)
    }

    pub(super) fn make_tables(&self, format: &str) -> Result<(), Trouble> {
        let script = format!(
            "BEGIN; {}; INSERT INTO larder_store SELECT '{format}', 0, '', to_timestamp(0) \
             WHERE NOT EXISTS (SELECT FROM larder_store); COMMIT",
            TABLES.join("; ")
        );
        self.run(self.client.batch_execute(&script))
    }

    pub(super) fn check(&self) -> Result<Checked, Trouble> {
        let row = first(&self.run(self.client.simple_query(CHECK))?);
        let mut row = row.into_iter();
        let fsync = row.next().flatten().unwrap_or_default();
        let format = match row.next().flatten() {
            Some(_) => {
                let said = self.run(self.client.simple_query("SELECT format FROM larder_store"))?;
                first(&said).into_iter().next().flatten()
            }
            None => None,
        };
        Ok(Checked { fsync, format })
    }

    /// How long the term of the owner lasts yet.
    pub(super) fn owned_for(&self) -> Result<Duration, Trouble> {
        let row = first(&self.run(self.client.simple_query(OWNED_FOR))?);
        let left = row.into_iter().next().flatten().and_then(|text| text.parse().ok());
        left.map(Duration::from_millis).ok_or_else(|| {
            Trouble::Refused("the store does not say until when somebody owns it".into())
        })
    }

    /// Names what late commits live in: by `name` if that has no name yet.
    pub(super) fn life(&self, name: &[u8]) -> Result<Vec<u8>, Trouble> {
        let has = first(&self.run(self.client.simple_query(HAS_LIFE))?);
        if has.into_iter().next().flatten().as_deref() != Some("t") {
            self.run(self.client.batch_execute(MAKE_LIFE))?;
        }
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let script = format!(
            "INSERT INTO larder_life VALUES (true, '{name}') ON CONFLICT DO NOTHING; \
             SELECT name FROM larder_life"
        );
        let row = first(&self.run(self.client.simple_query(&script))?);
        let name = row.into_iter().next().flatten();
        name.map(String::into_bytes).ok_or(Trouble::Conflict)
    }

    /// Waits until the database's disk has all commits before. Returns how many there were.
    pub(super) fn sync(&self) -> Result<u64, Trouble> {
        let sync = self.prepared(SYNC)?;
        let row = self.run(self.client.query_one(&sync, &[]))?;
        Ok(row.try_get::<_, i64>(0)?.cast_unsigned())
    }

    /// How many commits there are.
    pub(super) fn number(&self) -> Result<u64, Trouble> {
        self.number_by("SELECT commits FROM larder_store")
    }

    /// Begins a transaction that sees one state. Returns the number of that state.
    pub(super) fn begin(&self) -> Result<u64, Trouble> {
        self.number_by(BEGIN)
    }

    fn number_by(&self, statements: &str) -> Result<u64, Trouble> {
        let row = first(&self.run(self.client.simple_query(statements))?);
        let number = row.into_iter().next().flatten().and_then(|text| text.parse().ok());
        number.ok_or_else(|| {
            Trouble::Refused("the store does not say how many commits it has".into())
        })
    }

    pub(super) fn end(&self) -> Result<(), Trouble> {
        self.run(self.client.batch_execute("COMMIT"))
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Trouble> {
        let get = self.prepared(GET)?;
        let row = self.run(self.client.query_opt(&get, &[&key]))?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    pub(super) fn scan(&self, from: &[u8], until: &[u8], rows: i64) -> Result<Vec<Row>, Trouble> {
        let scan = self.prepared(SCAN)?;
        let found = self.run(self.client.query(&scan, &[&from, &until, &rows]))?;
        found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// Commits as number `number` plus one. Returns whether it was carried out.
    pub(super) fn commit(
        &self,
        Batch { writes, owner, term, is_late }: &Batch<'_>,
        number: u64,
        mark: &[u8],
    ) -> Result<bool, Trouble> {
        let commit = self.prepared(COMMIT)?;
        let mut removed: Vec<&[u8]> = Vec::new();
        let (mut keys, mut values): (Vec<&[u8]>, Vec<&[u8]>) = (Vec::new(), Vec::new());
        for (key, value) in *writes {
            match value {
                Some(value) => {
                    keys.push(key);
                    values.push(value);
                }
                None => removed.push(key),
            }
        }
        let number = number.cast_signed();
        let term = i64::try_from(term.as_millis()).unwrap_or(i64::MAX);
        let takes = writes.contains_key(&owner.key);
        let done = self.run(self.client.query_opt(
            &commit,
            &[
                &mark,
                &number,
                &owner.key,
                &owner.value,
                &removed,
                &keys,
                &values,
                &term,
                &takes,
                is_late,
            ],
        ))?;
        Ok(done.is_some())
    }

    /// Raises the number of commits if it is `number`. Returns the content of the row afterwards.
    pub(super) fn fence(&self, number: u64, mark: &[u8]) -> Result<Last, Trouble> {
        let fence = self.prepared(FENCE)?;
        let row = self.run(self.client.query_one(&fence, &[&mark, &number.cast_signed()]))?;
        let number: i64 = row.try_get(0)?;
        Ok(Last { number: number.cast_unsigned(), mark: row.try_get(1)? })
    }
}

/// The first row of an answer in text.
fn first(messages: &[SimpleQueryMessage]) -> Vec<Option<String>> {
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let Some(row) = row else { return Vec::new() };
    (0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect()
}

fn silent() -> Trouble {
    Trouble::Away(format!("no answer within {} s", ANSWER_MAX.as_secs()))
}

/// Lets a thread wait, whatever else runs on it.
fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

/// Lets this thread pause.
pub(super) fn wait(clock: &Arc<dyn Clock>, pause: Duration) {
    // Without a runtime no wait is possible, and no request could have been made either.
    if let Ok(runtime) = Builder::new_current_thread().enable_time().build() {
        blocking(|| runtime.block_on(async { clock.sleep_until(clock.instant() + pause).await }));
    }
}
