//! Every declared layout against the rows of the PRM's tables (`tests/data/prm/`), which were made apart from
//! the declarations, and the numbers of opcodes, statuses and events against the table of constants.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use ferroce_firmware_iface::event::EventType;
use ferroce_firmware_iface::layouts;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::{CommandStatus, CqeSyndrome, HealthSyndrome};

#[derive(Debug, PartialEq, Eq)]
struct Row {
    bit_offset: u32,
    bit_width: u32,
    count: u32,
    nested: String,
}

fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

fn table(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/data/prm")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn layout_rows() -> BTreeMap<String, BTreeMap<String, Row>> {
    let mut rows: BTreeMap<String, BTreeMap<String, Row>> = BTreeMap::new();
    for line in table("layouts.tsv").lines().filter(|l| !l.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let count = columns.get(5).filter(|c| !c.is_empty()).map_or(1, |c| number(c));
        let row = Row {
            bit_offset: number(columns[3]),
            bit_width: number(columns[4]),
            count,
            nested: columns.get(6).copied().unwrap_or_default().to_string(),
        };
        rows.entry(columns[0].to_string())
            .or_default()
            .insert(columns[2].to_string(), row);
    }
    rows
}

#[test]
fn every_field_stands_where_the_prm_has_it() {
    let rows = layout_rows();
    let mut fields = 0;
    for layout in layouts::ALL.iter().copied().flatten() {
        let table = rows
            .get(layout.name)
            .unwrap_or_else(|| panic!("no rows for {}", layout.name));
        assert_eq!(
            layout.bytes as u32 * 8,
            table["(size)"].bit_width,
            "size of {}",
            layout.name
        );
        assert_eq!(
            layout.fields.len() + 1,
            table.len(),
            "number of fields of {}",
            layout.name
        );
        for field in layout.fields {
            // `type` is a word of Rust's, and its names have no dots.
            let name = if field.name == "type_" { "type" } else { field.name };
            let name = name.replace("__", ".");
            let name = name.as_str();
            let row = table
                .get(name)
                .unwrap_or_else(|| panic!("{} has no field {name}", layout.name));
            assert_eq!(field.bit_offset, row.bit_offset, "{}.{name}", layout.name);
            // A tail, and the place of a union whose alternatives the command tells apart.
            if field.bit_width == 0 {
                let union = row.nested.ends_with("_union") || row.nested.ends_with("_auto");
                assert!(
                    row.count == 0 || union || row.bit_width == 0,
                    "{}.{name}: {row:?}",
                    layout.name
                );
                continue;
            }
            assert_eq!(field.bit_width, row.bit_width, "{}.{name}", layout.name);
            assert_eq!(field.count, row.count, "{}.{name}", layout.name);
            if let Some(nested) = field.nested {
                assert_eq!(nested.name, row.nested, "{}.{name}", layout.name);
            }
            fields += 1;
        }
    }
    assert!(fields > 1000, "the comparison covered {fields} fields only");
}

fn constants() -> BTreeMap<String, u32> {
    table("constants.tsv")
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once('\t').map(|(n, v)| (n.to_string(), number(v))))
        .collect()
}

#[test]
fn opcodes_are_the_prms() {
    let constants = constants();
    for opcode in Opcode::ALL {
        let name = opcode.name().unwrap();
        let value = constants
            .get(&format!("MLX5_CMD_OP_{name}"))
            .or_else(|| constants.get(&format!("MLX5_CMD_OPCODE_{name}")))
            // The PRM's table calls this one SQD_RTS_QP; its layout is sqd2rts_qp_in.
            .or_else(|| {
                constants
                    .get("MLX5_CMD_OP_SQD_RTS_QP")
                    .filter(|_| name == "SQD2RTS_QP")
            });
        assert_eq!(value, Some(&u32::from(opcode.0)), "{name}");
    }
}

#[test]
fn statuses_and_events_are_the_prms() {
    let constants = constants();
    let value = |name: &str| {
        constants
            .get(name)
            .copied()
            .unwrap_or_else(|| panic!("no constant {name}"))
    };
    for (status, name) in [
        (CommandStatus::OK, "OK"),
        (CommandStatus::INTERNAL_ERR, "INT_ERR"),
        (CommandStatus::BAD_OP, "BAD_OP_ERR"),
        (CommandStatus::BAD_PARAM, "BAD_PARAM_ERR"),
        (CommandStatus::BAD_SYS_STATE, "BAD_SYS_STATE_ERR"),
        (CommandStatus::BAD_RESOURCE, "BAD_RES_ERR"),
        (CommandStatus::RESOURCE_BUSY, "RES_BUSY"),
        (CommandStatus::NOT_READY, "NOT_READY"),
        (CommandStatus::EXCEED_LIM, "LIM_ERR"),
        (CommandStatus::BAD_RES_STATE, "BAD_RES_STATE_ERR"),
        (CommandStatus::BAD_INDEX, "IX_ERR"),
        (CommandStatus::NO_RESOURCES, "NO_RES_ERR"),
        (CommandStatus::BAD_INP_LEN, "BAD_INP_LEN_ERR"),
        (CommandStatus::BAD_OUTP_LEN, "BAD_OUTP_LEN_ERR"),
        (CommandStatus::BAD_QP_STATE, "BAD_QP_STATE_ERR"),
        (CommandStatus::BAD_PKT, "BAD_PKT_ERR"),
        (CommandStatus::BAD_SIZE_OUTSTANDING_CQES, "BAD_SIZE_OUTS_CQES_ERR"),
    ] {
        assert_eq!(
            u32::from(status.0),
            value(&format!("MLX5_CMD_STAT_{name}")),
            "{name}"
        );
    }
    for (event, name) in [
        (EventType::COMPLETION, "COMP"),
        (EventType::PATH_MIGRATED, "PATH_MIG"),
        (EventType::COMM_ESTABLISHED, "COMM_EST"),
        (EventType::SQ_DRAINED, "SQ_DRAINED"),
        (EventType::SRQ_LAST_WQE, "SRQ_LAST_WQE"),
        (EventType::SRQ_LIMIT, "SRQ_RQ_LIMIT"),
        (EventType::CQ_ERROR, "CQ_ERROR"),
        (EventType::WQ_CATASTROPHIC_ERROR, "WQ_CATAS_ERROR"),
        (EventType::PATH_MIGRATION_FAILED, "PATH_MIG_FAILED"),
        (EventType::WQ_INVALID_REQUEST, "WQ_INVAL_REQ_ERROR"),
        (EventType::WQ_ACCESS_ERROR, "WQ_ACCESS_ERROR"),
        (EventType::SRQ_CATASTROPHIC_ERROR, "SRQ_CATAS_ERROR"),
        (EventType::INTERNAL_ERROR, "INTERNAL_ERROR"),
        (EventType::PORT_CHANGE, "PORT_CHANGE"),
        (EventType::PORT_MODULE, "PORT_MODULE_EVENT"),
        (EventType::TEMPERATURE_WARNING, "TEMP_WARN_EVENT"),
        (EventType::GENERAL, "GENERAL_EVENT"),
        (EventType::COMMAND, "CMD"),
        (EventType::PAGE_REQUEST, "PAGE_REQUEST"),
        (EventType::PAGE_FAULT, "PAGE_FAULT"),
        (EventType::NIC_VPORT_CHANGE, "NIC_VPORT_CHANGE"),
    ] {
        assert_eq!(
            u32::from(event.0),
            value(&format!("MLX5_EVENT_TYPE_{name}")),
            "{name}"
        );
    }
    for (syndrome, name) in [
        (CqeSyndrome::LOCAL_LENGTH_ERR, "LOCAL_LENGTH_ERR"),
        (CqeSyndrome::LOCAL_QP_OP_ERR, "LOCAL_QP_OP_ERR"),
        (CqeSyndrome::LOCAL_PROT_ERR, "LOCAL_PROT_ERR"),
        (CqeSyndrome::WR_FLUSH_ERR, "WR_FLUSH_ERR"),
        (CqeSyndrome::MW_BIND_ERR, "MW_BIND_ERR"),
        (CqeSyndrome::BAD_RESP_ERR, "BAD_RESP_ERR"),
        (CqeSyndrome::LOCAL_ACCESS_ERR, "LOCAL_ACCESS_ERR"),
        (CqeSyndrome::REMOTE_INVAL_REQ_ERR, "REMOTE_INVAL_REQ_ERR"),
        (CqeSyndrome::REMOTE_ACCESS_ERR, "REMOTE_ACCESS_ERR"),
        (CqeSyndrome::REMOTE_OP_ERR, "REMOTE_OP_ERR"),
        (CqeSyndrome::TRANSPORT_RETRY_EXC_ERR, "TRANSPORT_RETRY_EXC_ERR"),
        (CqeSyndrome::RNR_RETRY_EXC_ERR, "RNR_RETRY_EXC_ERR"),
        (CqeSyndrome::REMOTE_ABORTED_ERR, "REMOTE_ABORTED_ERR"),
    ] {
        assert_eq!(
            u32::from(syndrome.0),
            value(&format!("MLX5_CQE_SYNDROME_{name}")),
            "{name}"
        );
    }
    let health = constants
        .iter()
        .filter(|(n, _)| n.starts_with("MLX5_INITIAL_SEG_HEALTH_SYNDROME_"));
    for (name, value) in health {
        assert!(
            HealthSyndrome::ALL.iter().any(|s| u32::from(s.0) == *value),
            "{name} is missing"
        );
    }
}
