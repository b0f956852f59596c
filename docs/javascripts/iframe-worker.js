// Search in pages that are opened as files. A browser starts no worker for a file: address, so the script of the
// search runs in a hidden frame instead, behind the same interface. The plugin "offline" looks for this file's name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = this.frame.contentWindow
      const load = (address) =>
        new Promise((done, failed) => {
          const script = inner.document.createElement("script")
          script.src = address
          script.onload = done
          script.onerror = () => failed(new Error(`${address} cannot be loaded`))
          inner.document.body.appendChild(script)
        })
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve())
      this.ready = load(url)
    }

    postMessage(data) {
      const inner = this.frame.contentWindow
      this.ready.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
