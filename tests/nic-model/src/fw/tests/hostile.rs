//! A host that writes what it likes: never a panic, and bounded work.

use proptest::prelude::*;

use super::*;

fn opcodes() -> impl Strategy<Value = u16> {
    prop_oneof![
        8 => proptest::sample::select(Opcode::ALL).prop_map(|o| o.0),
        1 => any::<u16>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_command_is_answered(
        commands in proptest::collection::vec(
            (opcodes(), any::<u16>(), proptest::collection::vec(any::<u8>(), 0..600), 8usize..5000, any::<bool>()),
            1..12,
        ),
    ) {
        let mut bench = Bench::initialized(Profile::connectx5());
        for (opcode, op_mod, body, output_length, sparse) in commands {
            let mut input = vec![0; 8];
            input[..2].copy_from_slice(&opcode.to_be_bytes());
            input[6..8].copy_from_slice(&(op_mod & 3).to_be_bytes());
            // Mostly zeros come further than mostly ones.
            let mask = if sparse { 0x01 } else { 0xff };
            input.extend(body.iter().map(|b| if sparse && b % 7 != 0 { 0 } else { b & mask }));
            bench.exec(&input, output_length);
        }
    }

    #[test]
    fn any_entry_is_dealt_with(bytes in proptest::array::uniform32(any::<[u8; 2]>()), owner in any::<bool>(), near in any::<bool>()) {
        let mut bench = Bench::new(Profile::connectx4());
        let mut entry = Entry::new_zeroed();
        for (to, from) in entry.as_mut_bytes().iter_mut().zip(bytes.as_flattened()) {
            *to = *from;
        }
        if near {
            entry.ty = TYPE_PCIE;
            (entry.rsvd1, entry.rsvd2) = ([0; 3], 0);
            entry.input_mailbox = (INPUT + (entry.input_mailbox.get() & 0xfc00)).into();
            entry.output_mailbox = (INPUT + (entry.output_mailbox.get() & 0xfc00)).into();
            entry.input_length = (entry.input_length.get() & 0xf_ffff).into();
            entry.output_length = (entry.output_length.get() & 0xfff).into();
        }
        entry.status_own = u8::from(owner);
        bench.put_entry(0, &entry);
        bench.write32(0x18, 1);
        bench.run();
        if owner {
            prop_assert_ne!(bench.reply(0, 16), Reply::Pending);
        }
    }

    #[test]
    fn any_write_to_the_init_segment_is_survived(
        writes in proptest::collection::vec((0u64..0x3000, proptest::collection::vec(any::<u8>(), 0..20)), 0..50),
    ) {
        let mut bench = Bench::initialized(Profile::connectx4());
        for (at, data) in writes {
            bench.fw.bar_write(bench.now_ns, at, &data);
            bench.run();
            let mut back = data;
            bench.fw.bar_read(bench.now_ns, at, &mut back);
        }
    }
}
