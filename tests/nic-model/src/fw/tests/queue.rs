use super::*;
use ferroce_firmware_iface::queue::BLOCK_BYTES;

fn entry_for(input_length: u32, output_length: u32) -> Entry {
    let mut entry = Entry::new_zeroed();
    entry.ty = TYPE_PCIE;
    entry.input_length = input_length.into();
    entry.output_length = output_length.into();
    entry.input_mailbox = INPUT.into();
    entry.output_mailbox = OUTPUT.into();
    entry.status_own = Entry::OWNER_HW;
    entry.input[..2].copy_from_slice(&Opcode::ENABLE_HCA.0.to_be_bytes());
    entry
}

fn outcome(bench: &mut Bench, entry: &Entry) -> Reply {
    bench.put_entry(0, entry);
    bench.write32(0x18, 1);
    bench.run();
    bench.reply(0, 16)
}

#[test]
fn undeliverable_commands_say_why() {
    let mut bench = Bench::new(Profile::connectx4());
    let mut check = |edit: &dyn Fn(&mut Entry), status| {
        let mut entry = entry_for(16, 16);
        edit(&mut entry);
        assert_eq!(outcome(&mut bench, &entry), Reply::Undelivered(status));
    };
    check(&|e| e.ty = 6, DeliveryStatus::BAD_TYPE);
    check(&|e| e.rsvd2 = 1, DeliveryStatus::RESERVED_NOT_ZERO);
    check(&|e| e.input_length = 7.into(), DeliveryStatus::INPUT_LENGTH);
    check(
        &|e| e.input_length = u32::MAX.into(),
        DeliveryStatus::INPUT_LENGTH,
    );
    check(&|e| e.output_length = 0.into(), DeliveryStatus::OUTPUT_LENGTH);
    check(
        &|e| e.output_length = u32::MAX.into(),
        DeliveryStatus::OUTPUT_LENGTH,
    );
    check(
        &|e| {
            e.input_length = 17.into();
            e.input_mailbox = 0.into();
        },
        DeliveryStatus::BAD_INPUT_POINTER,
    );
    check(
        &|e| {
            e.output_length = 17.into();
            e.output_mailbox = (OUTPUT + 64).into();
        },
        DeliveryStatus::BAD_OUTPUT_POINTER,
    );
    assert_eq!(bench.fw.violations().total(), 8);
}

#[test]
fn a_chain_that_loops_or_ends_early_is_not_followed() {
    let mut bench = Bench::new(Profile::connectx4());
    let block = Block::new(0, INPUT, 0);
    bench.plane.host.write(INPUT, block.as_bytes()).unwrap();
    let entry = entry_for(16 + 1024, 16);
    assert_eq!(
        outcome(&mut bench, &entry),
        Reply::Undelivered(DeliveryStatus::BAD_BLOCK_NUMBER)
    );
    let block = Block::new(0, 0, 0);
    bench.plane.host.write(INPUT, block.as_bytes()).unwrap();
    assert_eq!(
        outcome(&mut bench, &entry),
        Reply::Undelivered(DeliveryStatus::BAD_INPUT_POINTER)
    );
    assert_eq!(bench.fw.state(), HcaState::Disabled);
}

#[test]
fn doorbells_for_entries_of_the_host_do_nothing() {
    let mut bench = Bench::new(Profile::connectx4());
    let mut entry = entry_for(16, 16);
    entry.status_own = 0;
    bench.put_entry(5, &entry);
    bench.write32(0x18, 1 << 5);
    bench.run();
    assert_eq!(bench.fw.state(), HcaState::Disabled);
    assert!(bench.complaints()[0].contains("slot 5"));
}

#[test]
fn the_output_fills_the_length_that_was_asked_for() {
    let mut bench = Bench::new(Profile::connectx4());
    bench.plain(Opcode::ENABLE_HCA, 0).ok();
    let issi: QueryIssiIn = input_of(Opcode::QUERY_ISSI, 0, |_| {});
    let long = bench.exec(issi.as_bytes(), 2000).ok();
    assert_eq!(long[0x6f], 2);
    assert!(
        long[0x70..].iter().all(|b| *b == 0),
        "stale bytes are overwritten"
    );
    let short = bench.exec(issi.as_bytes(), 0x20).ok();
    assert_eq!(short.len(), 0x20);
    let mut block = [0; BLOCK_BYTES];
    bench.plane.host.read(OUTPUT, &mut block).unwrap();
    assert_eq!(block[0x23d], bench.token, "the token is echoed");
}

#[test]
fn unknown_opcodes_get_bad_op_and_are_probes() {
    let mut bench = Bench::initialized(Profile::connectx4());
    assert_eq!(bench.plain(Opcode(0xfff), 0).refused().0, CommandStatus::BAD_OP);
    assert!(bench.fw.violations().iter().all(Violation::is_probe));
}

#[test]
fn reserved_bits_are_refused() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let mut input: AllocPdIn = input_of(Opcode::ALLOC_PD, 0, |_| {});
    input.as_mut_bytes()[12] = 1;
    let refused = bench.exec(input.as_bytes(), 16).refused();
    assert_eq!(refused, (CommandStatus::BAD_PARAM, syndrome::RESERVED_SET));
}

#[test]
fn signatures_are_checked_once_they_are_on() {
    let mut profile = Profile::connectx4();
    profile
        .capabilities
        .edit(crate::profile::CapType::GENERAL, |c: &mut CmdHcaCap| {
            c.set_cmdif_checksum(1).unwrap();
        });
    let mut bench = Bench::new(profile);
    let mut entry = entry_for(16, 16);
    assert_eq!(
        outcome(&mut bench, &entry),
        Reply::Undelivered(DeliveryStatus::SIGNATURE)
    );
    entry.sign();
    assert!(matches!(outcome(&mut bench, &entry), Reply::Done(_)));
    let mut answered = Entry::new_zeroed();
    bench.plane.host.read(QUEUE, answered.as_mut_bytes()).unwrap();
    assert!(answered.signature_ok());
}

#[test]
fn commands_rung_before_the_event_queue_raise_no_event() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let eqn = bench.create_eq(&[0xa]);
    assert_eq!(bench.plane.events, []);
    bench.plain(Opcode::ALLOC_PD, 0).ok();
    assert_eq!(bench.plane.events, [Event::Command { slots: 1 }]);
    // DESTROY_EQ of that queue has nobody to tell.
    bench
        .command(Opcode::DESTROY_EQ, |i: &mut DestroyEqIn| i.set_eq_number(eqn))
        .ok();
    assert_eq!(bench.plane.events.len(), 1);
}

#[test]
fn commands_rung_together_complete_together() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.create_eq(&[0xa]);
    let input: AllocPdIn = input_of(Opcode::ALLOC_PD, 0, |_| {});
    for slot in [1, 4, 30] {
        bench.put(slot, input.as_bytes(), 16);
    }
    let slots = 1 << 1 | 1 << 4 | 1 << 30;
    bench.write32(0x18, slots);
    bench.run();
    assert_eq!(bench.plane.events, [Event::Command { slots }]);
    for slot in [1, 4, 30] {
        bench.reply(slot, 16).ok();
    }
}

#[test]
fn injected_faults_meet_their_command() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let pd = Some(Opcode::ALLOC_PD);
    bench
        .fw
        .faults_mut()
        .inject(pd, 0, Fault::Status(CommandStatus::EXCEED_LIM, 0x1234));
    assert_eq!(
        bench.plain(Opcode::ALLOC_PD, 0).refused(),
        (CommandStatus::EXCEED_LIM, 0x1234)
    );
    bench
        .fw
        .faults_mut()
        .inject(pd, 0, Fault::Delivery(DeliveryStatus::INTERNAL));
    assert_eq!(
        bench.plain(Opcode::ALLOC_PD, 0),
        Reply::Undelivered(DeliveryStatus::INTERNAL)
    );
    bench.fw.faults_mut().inject(pd, 0, Fault::LateAnswer(1_000));
    assert_eq!(bench.plain(Opcode::ALLOC_PD, 0), Reply::Pending);
    assert_eq!(bench.fw.next_timeout_ns(), Some(bench.now_ns + 1_000));
    bench.now_ns += 1_000;
    bench.run();
    bench.reply(0, 16).ok();
    bench.fw.faults_mut().inject(pd, 0, Fault::NoAnswer);
    assert_eq!(bench.plain(Opcode::ALLOC_PD, 0), Reply::Pending);
    bench.write32(0x18, 1);
    assert!(bench.complaints().last().unwrap().contains("busy slots"));
}

#[test]
fn a_trace_holds_both_ways() {
    #[derive(Clone, Default)]
    struct Sink(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let sink = Sink::default();
    let mut bench = Bench::new(Profile::connectx4());
    bench.fw.set_trace(Some(Box::new(sink.clone())));
    bench.plain(Opcode::ENABLE_HCA, 0).ok();
    let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("ENABLE_HCA(0x104) INPUT") && text.contains("ENABLE_HCA(0x104) OUTPUT"));
}
