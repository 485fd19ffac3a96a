//! Tests with a server that follows a script: answers of real servers, and malformed answers.

use super::*;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

/// Returns a packet as a server sends it.
fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
    [&length[..3], &[sequence], payload].concat()
}

/// Returns a greeting with the nonce 1 to 20.
fn greeting(method: &str) -> Vec<u8> {
    let nonce: Vec<u8> = (1..=20).collect();
    let mut p = b"\x0a8.0.1-test\0\x07\0\0\0".to_vec();
    p.extend(&nonce[..8]);
    p.extend(b"\0\xff\xff\x2d\x02\0\xff\xff\x15");
    p.extend([0; 10]);
    p.extend(&nonce[8..]);
    p.push(0);
    p.extend(method.bytes().chain([0]));
    packet(0, &p)
}

/// Returns the answer to a query for a counter.
fn counter(value: &str) -> Vec<u8> {
    let row =
        [&[9], b"Questions".as_slice(), &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    [
        packet(1, &[2]),
        packet(2, b"def..."),
        packet(3, b"def..."),
        packet(4, b"\xfe\0\0\x02\0"),
        packet(5, &row),
        packet(6, b"\xfe\0\0\x02\0"),
    ]
    .concat()
}

fn ok(sequence: u8) -> Vec<u8> {
    packet(sequence, &[0, 0, 0, 2, 0, 0, 0])
}

/// Starts a server on a socket of its own. The server sends the first part, then one more part for each
/// packet that it receives. The thread returns the received packets.
fn server(script: Vec<Vec<u8>>) -> (PathBuf, JoinHandle<Vec<Vec<u8>>>) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("whet-mysql-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        for part in script {
            stream.write_all(&part).unwrap();
            let mut header = [0; 4];
            if stream.read_exact(&mut header).is_err() {
                break;
            }
            let mut payload = vec![0; usize::from(header[0]) | usize::from(header[1]) << 8];
            stream.read_exact(&mut payload).unwrap();
            got.push(payload);
        }
        got
    });
    (path, thread)
}

/// Opens a session with an account whose password is "secret".
fn open(path: &Path) -> Result<MySql, String> {
    let options_path = path.with_extension("cnf");
    fs::write(&options_path, "[client]\nuser=watcher\npassword=secret\n").unwrap();
    let options = MySqlOptions {
        socket: Some(path.to_owned()),
        option_file: Some(options_path.clone()),
        ..MySqlOptions::default()
    };
    let opened = MySql::open(Pid(0), &options);
    fs::remove_file(options_path).unwrap();
    fs::remove_file(path).unwrap();
    opened.map_err(|e| e.message)
}

#[test]
fn its_own_questions_are_not_counted() {
    let script = vec![greeting("mysql_native_password"), ok(2), counter("101"), counter("155")];
    let (path, thread) = server(script);
    let mut work = open(&path).unwrap();
    // Opening the session sent the first query.
    assert_eq!(work.read().unwrap(), 153.0);
    drop(work);
    let got = thread.join().unwrap();
    assert!(got[0].windows(8).any(|w| w == b"watcher\0"));
    assert_eq!(got[1], [b"\x03", QUESTION.as_bytes()].concat());
}

#[test]
fn accounts_use_the_method_that_the_server_requests() {
    let nonce: Vec<u8> = (1..=20).collect();
    // The server's usual method is the new one; the account has the old one.
    let switch = [b"\xfe", b"mysql_native_password\0".as_slice(), &nonce, &[0]].concat();
    let script = vec![greeting("caching_sha2_password"), packet(2, &switch), ok(4), counter("1")];
    let (path, thread) = server(script);
    drop(open(&path).unwrap());
    assert_eq!(thread.join().unwrap()[1].len(), 20);

    // The server does not have the password in its cache, and the socket is private.
    let script = vec![greeting("caching_sha2_password"), packet(2, &[1, 4]), ok(4), counter("1")];
    let (path, thread) = server(script);
    drop(open(&path).unwrap());
    assert_eq!(thread.join().unwrap()[1], b"secret\0");

    // The server has the password in its cache. It sends two packets at once.
    let script = vec![greeting("caching_sha2_password"), [packet(2, &[1, 3]), ok(3)].concat(), counter("1")];
    let (path, thread) = server(script);
    drop(open(&path).unwrap());
    drop(thread.join().unwrap());

    // The server gets the user from the kernel.
    let script =
        vec![greeting("mysql_native_password"), packet(2, b"\xfeunix_socket\0"), ok(4), counter("1")];
    let (path, thread) = server(script);
    drop(open(&path).unwrap());
    assert_eq!(thread.join().unwrap()[1], b"");
}

#[test]
fn refusals_and_malformed_answers_are_reported() {
    let fails = |script: Vec<Vec<u8>>| {
        let (path, thread) = server(script);
        let error = open(&path).unwrap_err();
        drop(thread.join());
        error
    };
    let denied = packet(2, b"\xff\x15\x04#28000Access denied for user 'watcher'");
    let error = fails(vec![greeting("mysql_native_password"), denied]);
    assert_eq!(error, "the server says: Access denied for user 'watcher' (error 1045)");
    let busy = fails(vec![packet(0, b"\xff\x10\x04Too many connections")]);
    assert_eq!(busy, "the server says: Too many connections (error 1040)");
    let method = fails(vec![greeting("mysql_native_password"), packet(2, b"\xfeclient_ed25519\0abc\0")]);
    assert!(method.contains("client_ed25519"), "{method}");
    for nonsense in [
        packet(0, b"\x09old"),
        packet(0, b"\x0a8.0"),
        packet(0, b"\xff"),
        packet(0, b""),
        b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
    ] {
        let error = fails(vec![nonsense]);
        assert!(error.contains("not the MySQL protocol"), "{error}");
    }
    let rows: [&[u8]; 4] = [b"\x05Ques", b"\xfc\x01", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xfb\xfb"];
    for row in rows {
        let bad = [
            packet(1, &[1]),
            packet(2, b"def"),
            packet(3, b"\xfe\0\0\x02\0"),
            packet(4, row),
            packet(5, b"\xfe\0\0\x02\0"),
        ];
        let error = fails(vec![greeting("mysql_native_password"), ok(2), bad.concat()]);
        assert!(error.contains("not the MySQL protocol"), "{error}");
    }
}

#[test]
fn the_targets_own_socket_is_found() {
    let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 100 /run/mysqld/mysqld.sock\n\
        0000000000000000: 00000003 00000000 00000000 0001 03 101 /run/mysqld/mysqld.sock\n\
        0000000000000000: 00000003 00000000 00000000 0001 03 102\n\
        broken\n";
    assert_eq!(listening(table).collect::<Vec<_>>(), [("100", "/run/mysqld/mysqld.sock")]);
    let path = std::env::temp_dir().join(format!("whet-listens-{}", std::process::id()));
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let me = Pid(std::process::id().cast_signed());
    // The socket of another test in this process may be found instead.
    let found = own_socket(me).unwrap().display().to_string();
    assert!(found.starts_with(&format!("/proc/{me}/root/")) && found.contains("whet-"), "{found}");
    fs::remove_file(path).unwrap();
}
